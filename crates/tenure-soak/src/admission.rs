//! Memory that threads admit before they take it, all at once.

use std::thread;

use tenure::{Error, HugePages, Mapping, headroom, page_size};

use super::model::{Checked, mismatch};
use super::step::Count;
use super::verbs::Tools;

/// Has threads admit so many bytes each, take a part, and give the rest back.
pub fn admit_at_once(tools: &Tools, threads: usize, bytes: usize) -> Checked {
    let take = |part: usize| move || take(bytes, bytes / part);
    let answers: Vec<_> = thread::scope(|scope| {
        // Where RLIMIT_DATA leaves no memory for a stack there is one thread less.
        let start = |part| thread::Builder::new().spawn_scoped(scope, take(part)).ok();
        let started: Vec<_> = (2..=threads).filter_map(start).collect();
        let own = take(1)();
        let others = started.into_iter().map(|thread| thread.join());
        let others = others.map(|joined| joined.expect("taking memory does not panic"));
        others.chain([own]).collect()
    });
    for answer in answers {
        if let Some(taken) = tools.expect(answer, &["not_admitted"])? {
            tools.board.add(Count::BytesAdmitted, taken as u64);
        }
    }
    Ok(())
}

/// Admits bytes, takes `taken_bytes` of them, and frees those. Returns how many it admitted.
fn take(bytes: usize, taken_bytes: usize) -> Result<usize, Error> {
    // With page tables.
    let admission = headroom::admit(bytes + bytes / 256 + 4 * page_size())?;
    let builder = Mapping::anonymous(bytes).huge_pages(HugePages::Never);
    let mut mapping = builder.map()?;
    let memory = mapping.as_mut_slice()?;
    for piece in memory[..taken_bytes].chunks_mut(16 * page_size()) {
        piece.fill(1);
        admission.mark_resident(piece.len());
    }
    let admitted_bytes = admission.bytes() + taken_bytes;
    drop(admission);
    drop(mapping);
    Ok(admitted_bytes)
}

/// Checks that nothing is admitted any more beside a known amount that is admitted now.
pub fn check_balanced() -> Checked {
    const BYTES: usize = 8 << 20;
    let admission = headroom::admit(BYTES);
    let admission = admission.map_err(|error| format!("the ledger at the end: {error}"))?;
    let found = headroom::outstanding_bytes();
    drop(admission);
    match found == BYTES {
        true => Ok(()),
        false => mismatch("bytes admitted at the end", BYTES, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_with_bytes_of_a_forgotten_admission_is_a_mismatch() {
        check_balanced().unwrap();
        let forgotten = headroom::admit(1 << 20).unwrap();
        assert!(check_balanced().is_err());
        drop(forgotten);
        check_balanced().unwrap();
    }
}
