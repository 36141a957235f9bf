//! Every fault of one operation.

use std::collections::HashMap;

use libtest_mimic::{Completion, Failed};

use super::case::{Case, Fault};
use super::control::Control;
use super::ledger;
use super::operations::Operation;
use super::state::{self, State};
use super::supervisor::{Ended, Seen, supervise};

/// Of calls that a thread makes more often, only so many first and last ones fail.
const OCCURRENCES: usize = 2;

/// Stops after so many failures, each of which may have waited for long.
const FAILURES: usize = 5;

/// Which errors a call fails with.
#[derive(Clone, Copy, PartialEq)]
pub enum Errnos {
    /// The first of its list.
    One,
    Every,
}

/// Runs the cases of an operation. Returns how many there were.
pub fn cases(operation: &Operation, errnos: Errnos) -> Result<(usize, Completion), Failed> {
    if let Some(reason) = (operation.unless)() {
        return Ok((0, Completion::ignored_with(reason)));
    }
    let control = Control::new();
    let clean = match run(control, operation, None, None) {
        Ok(clean) => clean,
        Err(reason) => return Ok((0, Completion::ignored_with(reason))),
    };
    if let Some(problem) = clean.problem {
        return Err(format!("without a fault: {problem}").into());
    }
    let usual = state::parse(&clean.report);
    let only = std::env::var("TENURE_FAULT").unwrap_or_default();
    let faults: Vec<Fault> = faults(&clean.seen, errnos)
        .into_iter()
        .filter(|fault| fault.to_string().contains(&only))
        .collect();
    let mut failures = Vec::new();
    let mut met = 0;
    for fault in &faults {
        let usual = usual_after(operation, fault, &usual);
        let ended = run(control, operation, Some(fault), Some(&usual))?;
        met += usize::from(ended.is_met);
        if let Some(problem) = problem(&ended, &usual) {
            eprintln!("{}: {fault}: {problem}", operation.name);
            failures.push(format!("{fault}: {problem}"));
        }
        if failures.len() == FAILURES {
            break;
        }
    }
    if failures.is_empty() {
        println!("{met} cases");
        Ok((met, Completion::Completed))
    } else {
        Err(format!("of {} cases:\n{}", faults.len(), failures.join("\n")).into())
    }
}

fn run(
    control: &'static Control,
    operation: &Operation,
    fault: Option<&Fault>,
    usual: Option<&State>,
) -> Result<Ended, String> {
    let body = || {
        let run = |control| {
            (operation.run)(&Case {
                control,
                fault: fault.cloned(),
            });
            state::wait_until_idle();
        };
        // The warm-up creates without faults what a process creates once.
        if operation.is_warm {
            run(None);
        }
        run(Some(control));
        ledger::assert_balanced();
        let state = match usual {
            None => state::lasting(),
            Some(usual) => state::without_excess(usual),
        };
        control.write_report(&state::text(&state));
    };
    let mut count = 0;
    supervise(control, body, |seen| {
        let fault = fault.filter(|fault| fault.is_of(seen))?;
        count += 1;
        (count == fault.occurrence).then_some(fault.errno)
    })
}

fn problem(ended: &Ended, usual: &State) -> Option<String> {
    if ended.problem.is_some() {
        return ended.problem.clone();
    }
    let excess = state::excess(&state::parse(&ended.report), usual);
    (!excess.is_empty()).then(|| format!("leaked: {}", excess.join(", ")))
}

/// Returns what there usually is, with what the fault leaves.
fn usual_after(operation: &Operation, fault: &Fault, usual: &State) -> State {
    let mut usual = usual.clone();
    // Addresses that stay mapped, because munmap is not repeated: the stacks of the
    // tear-down helper, and what a cache reserves to check that it can map another arena as
    // large as its first, where no file tells.
    let left_bytes = match (operation.name, fault.call.as_str()) {
        ("teardown", "munmap") => 256 << 10,
        (name, "munmap")
            if name.starts_with("cache_insert") && name.ends_with("without_descriptors") =>
        {
            128 << 20
        }
        // The page on which a process finds out once what the kernel can do.
        (name, "munmap") if name.contains("_first") => tenure::page_size() as u64,
        // The table of an arena's buffers.
        ("volatile_buffer_in_arena", "munmap") => 64 << 10,
        _ => 0,
    };
    *usual
        .entry("bytes mapped rw-p anonymous".to_owned())
        .or_default() += left_bytes;
    // All of the file that shared memory is.
    if operation.name.starts_with("shared_") && fault.call == "munmap" {
        let mapped = "bytes mapped rw-s /memfd:tenure-shared".to_owned();
        *usual.entry(mapped).or_default() += 5 << 20;
    }
    // The userfaultfd that the process keeps; it is opened once a descriptor is left.
    let is_late = operation.name.ends_with("without_descriptors");
    if is_late && operation.name.starts_with("cache_insert") {
        *usual
            .entry("descriptors of anon_inode:[userfaultfd]".to_owned())
            .or_default() += 1;
    }
    usual
}

/// Lists the faults that can occur in the calls of a run without faults.
fn faults(seen: &[Seen], errnos: Errnos) -> Vec<Fault> {
    let key = |seen: &Seen| (seen.thread.clone(), seen.call.name.clone());
    let mut totals = HashMap::new();
    for seen in seen {
        *totals.entry(key(seen)).or_insert(0) += 1;
    }
    let mut counts = HashMap::new();
    let mut faults = Vec::new();
    for seen in seen {
        let total = totals[&key(seen)];
        let occurrence = counts.entry(key(seen)).or_insert(0);
        *occurrence += 1;
        if *occurrence > OCCURRENCES && *occurrence + OCCURRENCES <= total {
            continue;
        }
        let count = match errnos {
            Errnos::One => 1,
            Errnos::Every => usize::MAX,
        };
        faults.extend(seen.call.errnos.iter().take(count).map(|&errno| Fault {
            thread: seen.thread.clone(),
            call: seen.call.name.clone(),
            file: seen.call.file.clone(),
            occurrence: *occurrence,
            errno,
        }));
    }
    faults
}

impl Fault {
    fn is_of(&self, seen: &Seen) -> bool {
        self.thread == seen.thread && self.call == seen.call.name
    }
}
