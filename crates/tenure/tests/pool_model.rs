//! pool: random sequences of calls beside a model of each page: never a byte that is not zero
//! in fresh memory, never another mapping's bytes.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use proptest::prelude::*;
use tenure::pool::{self, PoolOptions};
use tenure::{Access, Features, HugePages, Mapping, page_size};

tests!(
    random_sequence_with_pool_matches_page_model,
    random_sequence_without_userfaultfd_matches_page_model;
    children: sequences,
);

const MIB: usize = 1 << 20;
const MAPPINGS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Map {
        mib: usize,
        is_populated: bool,
        huge_pages: Option<HugePages>,
    },
    Write,
    Release,
    Recycle,
    Discard,
    Populate,
    LazyFree,
    Fork,
    NeedMemory,
    Configure {
        mib: usize,
        prefill: bool,
        released: bool,
    },
    Drain,
}

/// A mapping, and what each of its pages is filled with.
struct Model {
    memory: Mapping,
    pages: Vec<u8>,
}

impl Model {
    fn check(&self, from: usize, to: usize) {
        let page = page_size();
        for (number, &tag) in self.pages.iter().enumerate().take(to).skip(from) {
            let bytes = &self.memory.as_slice()[number * page..(number + 1) * page];
            let expected: &[u8] = &vec![tag; page];
            assert!(bytes == expected, "page {number} is not all {tag}");
        }
    }

    fn check_all(&self) {
        self.check(0, self.pages.len());
    }
}

fn random_sequence_with_pool_matches_page_model() {
    in_child_ok("sequences");
}

fn random_sequence_without_userfaultfd_matches_page_model() {
    in_child_without("userfaultfd", "sequences");
}

fn sequences() {
    let features = Features::get();
    if features.mremap_dontunmap.is_err() || features.madv_populate.is_err() {
        return;
    }
    let huge_pages = prop_oneof![
        2 => Just(None),
        2 => Just(Some(HugePages::Never)),
        1 => Just(Some(HugePages::Always)),
    ];
    let step = prop_oneof![
        6 => (4_usize..40, any::<bool>(), huge_pages).prop_map(|(mib, is_populated, huge_pages)| {
            Step::Map { mib, is_populated, huge_pages }
        }),
        6 => Just(Step::Write),
        2 => Just(Step::Release),
        5 => Just(Step::Recycle),
        2 => Just(Step::Discard),
        5 => Just(Step::Populate),
        1 => Just(Step::LazyFree),
        1 => Just(Step::Fork),
        1 => Just(Step::NeedMemory),
        1 => (0_usize..100, any::<bool>(), any::<bool>()).prop_map(|(mib, prefill, released)| {
            Step::Configure { mib, prefill, released }
        }),
        4 => Just(Step::Drain),
    ];
    let bounds = (0..MAPPINGS, 0.0..1.0_f64, 0.0..1.0_f64);
    let steps = proptest::collection::vec((step, bounds), 10..40);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    };
    let last_tag = std::cell::Cell::new(0_u8);
    proptest!(config, |(steps in steps)| {
        let options = PoolOptions::new().max_bytes(64 * MIB);
        pool::configure(&options.recycle_released(last_tag.get().is_multiple_of(2))).unwrap();
        let mut mappings: [Option<Model>; MAPPINGS] = [const { None }; MAPPINGS];
        for (step, (index, from, len)) in steps {
            last_tag.set(last_tag.get() % 250 + 1);
            take(step, &mut mappings[index], from, len, last_tag.get());
        }
        mappings.iter().flatten().for_each(Model::check_all);
    });
    pool::configure(&PoolOptions::new()).unwrap();
}

fn take(step: Step, model: &mut Option<Model>, from: f64, len: f64, tag: u8) {
    match (step, model) {
        (
            Step::Map {
                mib,
                is_populated,
                huge_pages,
            },
            place,
        ) => {
            // Not whole blocks.
            let len = mib * MIB - 3 * page_size();
            let mut builder = Mapping::anonymous(len);
            if let Some(choice) = huge_pages {
                builder = builder.huge_pages(choice);
            }
            let mapped = match is_populated {
                true => builder.map_populated(),
                false => builder.map(),
            };
            // A kernel without huge pages refuses the advice.
            let Ok(memory) = mapped else { return };
            if let Some(old) = place.replace(Model {
                pages: vec![0; memory.range().pages()],
                memory,
            }) {
                old.check_all();
            }
        }
        (Step::Fork, Some(model)) => {
            let status = fork(|| {
                model.check_all();
                i32::from(pool::stats().max_bytes != 0)
            });
            assert_eq!(status, 0);
        }
        (Step::NeedMemory, _) => drop(tenure::release::drain_for_retry()),
        (
            Step::Configure {
                mib,
                prefill,
                released,
            },
            _,
        ) => {
            let prefill_bytes = if prefill { 8 * MIB } else { 0 };
            let options = PoolOptions::new()
                .max_bytes(mib * MIB)
                .recycle_released(released);
            pool::configure(&options.prefill_bytes(prefill_bytes)).unwrap();
        }
        (Step::Drain, _) => tenure::drain(None).unwrap(),
        (step @ (Step::Release | Step::Recycle), place @ Some(_)) => {
            let model = place.take().unwrap();
            model.check_all();
            match step {
                Step::Recycle => model.memory.recycle().unwrap(),
                _ => drop(model),
            }
        }
        (step, Some(model)) => {
            let count = model.pages.len();
            let from = (count as f64 * from) as usize;
            let to = (from + 1 + (count as f64 * len) as usize).min(count);
            change(step, model, from, to, tag);
        }
        (_, None) => {}
    }
}

/// Changes the pages `from..to`.
fn change(step: Step, model: &mut Model, from: usize, to: usize, tag: u8) {
    let bytes = from * page_size()..to * page_size();
    match step {
        Step::Write => {
            model.memory.as_mut_slice().unwrap()[bytes].fill(tag);
            model.pages[from..to].fill(tag);
        }
        Step::Discard => {
            model.memory.discard(bytes).unwrap();
            model.pages[from..to].fill(0);
        }
        Step::Populate => {
            model.memory.populate(bytes, Access::Write).unwrap();
            model.check(from, to);
        }
        // Zeros are what the kernel may leave, so that the contents stay known.
        _ => {
            model.memory.as_mut_slice().unwrap()[bytes.clone()].fill(0);
            model.pages[from..to].fill(0);
            let range = pages(model.memory.range(), from, to - from);
            unsafe { range.lazy_free() }.unwrap();
        }
    }
}
