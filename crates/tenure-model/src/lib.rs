//! Model checking of lock-free parts of volatile memory and its caches: the source files of `tenure`
//! itself, with loom's atomics, run through every interleaving of a few threads.

#![allow(dead_code, reason = "the models use a part of what they include")]

#[path = "../../tenure/src/verbs/volatile/registry/park_state.rs"]
mod park_state;
#[path = "../../tenure/src/verbs/volatile/priority.rs"]
mod priority;
#[path = "../../tenure/src/ground/sys/reader_slot.rs"]
mod reader_slot;
#[path = "../../tenure/src/ready/shared_memory/word.rs"]
mod shared_word;
#[path = "../../tenure/src/verbs/volatile/word.rs"]
mod word;

mod offer;
mod parking;
mod pins;
mod readers;
mod replacing;
mod shared;
mod sync;

pub use offer::*;
pub use parking::*;
pub use pins::*;
pub use readers::*;
pub use replacing::*;
pub use shared::*;

/// Stands for the modules of `tenure` that the included files import.
mod ground {
    pub(crate) mod sys {
        pub(crate) mod process {
            pub(crate) fn monotonic_nanos() -> u64 {
                0
            }

            pub(crate) fn monotonic_coarse_nanos() -> u64 {
                0
            }
        }
    }
}

/// Runs a model through all interleavings in which at most three times a thread is
/// preempted that could have gone on.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
