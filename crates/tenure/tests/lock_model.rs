//! lock: random sequences of calls, compared with a model of single pages and with the
//! flags of the kernel's mappings.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use proptest::prelude::*;
use tenure::{LockMode, PageRange, lock::LockFlags};

tests!(random_lock_sequence_matches_page_model);

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);

/// One step of a random sequence, on pages `from..to`.
#[derive(Clone, Copy, Debug)]
enum Step {
    Lock(LockMode),
    RawLock,
    Unlock(LockFlags),
    UnmapAndMap,
    Fork,
}

fn random_lock_sequence_matches_page_model() {
    const PAGES: usize = 10;
    let step = prop_oneof![
        3 => Just(Step::Lock(LockMode::Now)),
        3 => Just(Step::Lock(LockMode::OnFault)),
        1 => Just(Step::RawLock),
        2 => Just(Step::Unlock(LockFlags::NOW)),
        2 => Just(Step::Unlock(LockFlags::ON_FAULT)),
        1 => Just(Step::Unlock(LockFlags::ALL)),
        1 => Just(Step::UnmapAndMap),
        1 => Just(Step::Fork),
    ];
    let steps = proptest::collection::vec((step, 0..PAGES, 0..=PAGES), 1..20);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    };
    proptest!(config, |(steps in steps)| {
        let memory = anonymous(PAGES);
        let mut model = [None; PAGES];
        for (step, from, to) in steps {
            let range = pages(memory.range(), from, to.saturating_sub(from));
            if range.is_empty() {
                continue;
            }
            take(step, range, &mut model[from..to]);
            prop_assert_eq!(lock_modes(memory.range()), model);
        }
        let locked = model.iter().flatten().count();
        drop(memory);
        prop_assert!(locked == 0 || status_kib("VmLck") == 0);
    });
}

fn take(step: Step, range: PageRange, model: &mut [Option<LockMode>]) {
    match step {
        Step::Lock(mode) => {
            unsafe { range.lock(mode) }.unwrap();
            model.fill(Some(mode));
        }
        Step::RawLock => {
            // Before another program part locks the range, tenure must have unlocked it.
            unsafe { range.unlock(LockFlags::ALL) }.unwrap();
            match foreign_lock_modes_unknown() {
                None => {
                    raw_lock_on_fault(range);
                    model.fill(ON_FAULT);
                }
                // Foreign locks of unknown mode count as this mode.
                Some(_) => {
                    raw_lock(range);
                    model.fill(NOW);
                }
            }
        }
        Step::Unlock(modes) => {
            unsafe { range.unlock(modes) }.unwrap();
            let cleared = |mode| {
                modes == LockFlags::ALL
                    || mode == NOW && modes == LockFlags::NOW
                    || mode == ON_FAULT && modes == LockFlags::ON_FAULT
            };
            for mode in model.iter_mut().filter(|mode| cleared(**mode)) {
                *mode = None;
            }
        }
        Step::UnmapAndMap => {
            unsafe { range.munmap() }.unwrap();
            raw_map_over(range);
            model.fill(None);
        }
        Step::Fork => {
            let status = fork(|| i32::from(lock_modes(range).iter().any(|seen| seen.0.is_some())));
            assert_eq!(status, 0, "a child has inherited locks");
        }
    }
}
