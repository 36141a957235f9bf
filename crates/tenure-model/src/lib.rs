//! Model checking of the volatile verb's state word and hand-over: the files that
//! `tenure` itself is made of, with loom's atomics, run through every interleaving
//! of a few threads.

#![allow(dead_code, reason = "the models use a part of what they include")]

#[path = "../../tenure/src/verbs/volatile/order.rs"]
mod order;
#[path = "../../tenure/src/verbs/volatile/wakefulness.rs"]
mod wakefulness;
#[path = "../../tenure/src/verbs/volatile/word.rs"]
mod word;

mod hand_over;
mod sync;
mod waking;

pub use hand_over::*;
pub use waking::*;

use order::{Priority, Stamp};

/// As in `verbs/volatile/mod.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmarked {
    WasNot,
    Intact,
    Ask,
}

/// What the included files use of the rest.
mod ground {
    pub(crate) mod sys {
        pub(crate) mod process {
            pub(crate) fn monotonic_nanos() -> u64 {
                0
            }
        }
    }
}

/// Runs a model through all interleavings with at most three switches from a
/// thread that could have gone on.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
