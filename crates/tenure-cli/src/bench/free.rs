//! Experiment: give up a large range. How long does the caller wait?

use anyhow::{Result, bail};
use rustix::mm::Advice;
use tenure::{HugePages, Mapping, page_size};

use super::{
    Settings,
    experiment::{Case, CaseResult, Experiment, Recorder, Unit, Way},
    kernel, probe,
    raw::RawMapping,
    statistics::Better,
    text::{bytes_text, ratio_text, seconds_text},
    touch,
};

const WANTED_LEN: usize = 4 << 30;
const WANTED_DISCARD_LEN: usize = 1 << 30;
const STEP: usize = 64 << 20;
/// How much more of the process may be in memory after all is freed: page
/// tables do not count, but heap and stacks of other threads do.
const TOLERANCE_BYTES: u64 = 32 << 20;

const CALLER: &str = "caller waits";
const FREED: &str = "all is freed after";
const OTHERS: &str = "another thread's mmap waits at most";
const TENURE: &str = "tenure";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let fitted = settings.room.fit(WANTED_LEN, 3, STEP)?;
    let len = fitted.len;
    let discard_len = len.min(WANTED_DISCARD_LEN);
    let mut notes: Vec<String> = fitted.note.into_iter().collect();
    notes.push(
        "Base pages, all in memory. While the range is given up, another thread maps and unmaps \
         a page every 0.2 ms."
            .to_owned(),
    );
    let case = |what: &str, len: usize, ways| {
        Case::new(format!("{what} {}", bytes_text(len as f64)), ways)
    };
    Ok(Experiment {
        title: "give up a range of private anonymous memory".to_owned(),
        notes,
        compared: CALLER,
        better: Better::Less,
        cases: vec![
            case(
                "unmap",
                len,
                vec![
                    way("munmap", len, raw, RawMapping::unmap, check_unmapped).baseline(),
                    way(TENURE, len, with_tenure, munmap, check_unmapped).tenure(),
                ],
            ),
            case(
                "discard",
                discard_len,
                vec![
                    way("MADV_DONTNEED", discard_len, raw, dont_need, check_raw_zero).baseline(),
                    way(TENURE, discard_len, with_tenure, discard, check_tenure_zero).tenure(),
                ],
            ),
        ],
        conclude,
    })
}

/// Memory with all its pages, and what was in memory before they came.
struct Full<M> {
    memory: M,
    start: usize,
    resident_bytes_before: u64,
}

fn raw(len: usize) -> Result<Full<RawMapping>> {
    let resident_bytes_before = kernel::resident_bytes()?;
    let mut memory = RawMapping::base_pages(len)?;
    // SAFETY: `base_pages` maps writable memory.
    fill(unsafe { memory.bytes_mut() })?;
    Ok(Full {
        start: memory.start(),
        memory,
        resident_bytes_before,
    })
}

fn with_tenure(len: usize) -> Result<Full<Mapping>> {
    let resident_bytes_before = kernel::resident_bytes()?;
    let mut memory = Mapping::anonymous(len).huge_pages(HugePages::Never).map()?;
    fill(memory.as_mut_slice()?)?;
    Ok(Full {
        start: memory.as_ptr() as usize,
        memory,
        resident_bytes_before,
    })
}

/// Brings all pages in, and writes the bytes that are looked at later.
fn fill(bytes: &mut [u8]) -> Result<()> {
    touch::bring_in(bytes)?;
    bytes
        .iter_mut()
        .step_by(sample_step())
        .for_each(|byte| *byte = 1);
    Ok(())
}

/// A byte in about each 1 MiB, each at another offset in its page.
fn sample_step() -> usize {
    (1 << 20) + page_size() + 1
}

fn munmap(mapping: Mapping) -> Result<()> {
    Ok(mapping.munmap()?)
}

fn dont_need(mut mapping: RawMapping) -> Result<RawMapping> {
    mapping.advise(Advice::LinuxDontNeed)?;
    Ok(mapping)
}

fn discard(mut mapping: Mapping) -> Result<Mapping> {
    mapping.discard(..)?;
    Ok(mapping)
}

/// Makes a way that fills memory, gives it up and waits until it is freed.
fn way<M: 'static, R: 'static>(
    name: &'static str,
    len: usize,
    set_up: fn(usize) -> Result<Full<M>>,
    give_up: fn(M) -> Result<R>,
    check: fn(R, usize, usize) -> Result<()>,
) -> Way {
    Way::new(
        name,
        move || set_up(len),
        move |full, recorder: &mut Recorder<'_>| {
            let Full {
                memory,
                start,
                resident_bytes_before,
            } = full;
            let clock = recorder.clock();
            let work = || {
                let (rest, caller_seconds) = recorder.measure(|| give_up(memory));
                let (drained, drain_seconds) = recorder.measure(|| tenure::drain(None));
                recorder.record(CALLER, Unit::Seconds, caller_seconds);
                recorder.record(FREED, Unit::Seconds, caller_seconds + drain_seconds);
                drained?;
                rest
            };
            let (rest, longest) = probe::longest_wait(clock, page_size(), work)?;
            recorder.record(OTHERS, Unit::Seconds, longest);
            Ok((rest?, start, resident_bytes_before))
        },
        move |(rest, start, resident_bytes_before), _| {
            let resident_bytes = kernel::resident_bytes()?;
            if resident_bytes > resident_bytes_before + TOLERANCE_BYTES {
                bail!(
                    "{} in memory before, {} after all was freed",
                    bytes_text(resident_bytes_before as f64),
                    bytes_text(resident_bytes as f64)
                );
            }
            check(rest, start, len)?;
            Ok(tenure::drain(None)?)
        },
    )
}

/// Checks that nothing is mapped in the range. Threads started since, such as the
/// one that frees, may have their stacks there: a few hits are none of ours.
fn check_unmapped(_gone: (), start: usize, len: usize) -> Result<()> {
    let pages = len >> 20;
    let mut mapped = 0;
    for page in (start..start + len).step_by(1 << 20) {
        mapped += usize::from(kernel::is_mapped(page)?);
    }
    if mapped > pages / 8 {
        bail!("{mapped} of {pages} pages looked at are still mapped");
    }
    Ok(())
}

fn check_raw_zero(mapping: RawMapping, _start: usize, _len: usize) -> Result<()> {
    check_zero(mapping.bytes())
}

fn check_tenure_zero(mapping: Mapping, _start: usize, _len: usize) -> Result<()> {
    check_zero(mapping.as_slice())
}

/// Checks that the bytes that were written read as zeros.
fn check_zero(bytes: &[u8]) -> Result<()> {
    let sampled = bytes.iter().step_by(sample_step());
    match sampled.filter(|&&byte| byte != 0).count() {
        0 => Ok(()),
        left => bail!("{left} of the bytes looked at still have their contents"),
    }
}

fn conclude(cases: &[CaseResult]) -> String {
    let parts: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let old = case.ways.iter().find(|way| way.is_baseline)?;
            let new = case.way(TENURE)?;
            Some(format!(
                "To {}, the caller waits {} with tenure and {} with {}: {} times shorter",
                case.name,
                seconds_text(new.figure(CALLER)?.series.median),
                seconds_text(old.figure(CALLER)?.series.median),
                old.name,
                ratio_text(case.tenure()?.median),
            ))
        })
        .collect();
    format!("{}.", parts.join(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_there_fails_the_check() {
        let len = 8 << 20;
        let full = raw(len).unwrap();
        check_zero(full.memory.bytes()).unwrap_err();
        check_unmapped((), full.start, len).unwrap_err();
        check_zero(dont_need(full.memory).unwrap().bytes()).unwrap();
    }
}
