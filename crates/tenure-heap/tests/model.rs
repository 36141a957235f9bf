//! Any sequence of malloc, calloc, realloc and free keeps the contents that a plain
//! model expects.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use common::*;
use heap::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tenure_heap::{HeapOptions, stats};

tests!(any_call_sequence_matches_model; children: call_sequences);

/// The largest block, and the most blocks that are live at a time.
const MAX_BYTES: usize = 24 * MIB;
const MAX_BLOCKS: usize = 12;

#[derive(Clone, Debug)]
enum Call {
    Allocate {
        size: usize,
        zeroed: bool,
        align: usize,
    },
    Resize {
        which: usize,
        size: usize,
    },
    Free {
        which: usize,
    },
    /// All free blocks decay to muzzy or retained.
    Wait,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let size = || {
        prop_oneof![
            8 => 1..20_000_usize,
            8 => 20_000..600 * KIB,
            4 => 600 * KIB..5 * MIB,
            1 => 5 * MIB..MAX_BYTES,
        ]
    };
    let allocate =
        (size(), any::<bool>(), 4..23_u32).prop_map(|(size, zeroed, log)| Call::Allocate {
            size,
            zeroed,
            align: 1 << log,
        });
    let resize = (0..MAX_BLOCKS, size()).prop_map(|(which, size)| Call::Resize { which, size });
    let free = (0..MAX_BLOCKS).prop_map(|which| Call::Free { which });
    let call = prop_oneof![60 => allocate, 40 => resize, 50 => free, 1 => Just(Call::Wait)];
    prop::collection::vec(call, 1..60)
}

fn any_call_sequence_matches_model() {
    in_child_ok("call_sequences");
}

fn call_sequences() {
    tenure_heap::start(HeapOptions {
        dirty_decay: std::time::Duration::from_millis(50),
        muzzy_decay: std::time::Duration::from_millis(50),
        ..HeapOptions::default()
    })
    .unwrap();
    let config = Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&calls(), |calls| {
            run_through(&calls);
            Ok(())
        })
        .unwrap();
}

fn run_through(calls: &[Call]) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut seed = 0;
    for call in calls {
        seed += 1;
        match *call {
            Call::Allocate {
                size,
                zeroed,
                align,
            } if blocks.len() < MAX_BLOCKS => {
                let mut block = if zeroed {
                    let block = Block::zeroed(size);
                    assert!(block.is_zero(), "{call:?}");
                    block
                } else {
                    Block::aligned(size, align)
                };
                block.fill(seed);
                blocks.push(block);
            }
            Call::Resize { which, size } if which < blocks.len() => {
                let block = &mut blocks[which];
                let kept = block.size.min(size);
                block.resize(size);
                assert!(block.is_filled_up_to(kept), "{call:?}");
                block.fill(seed);
            }
            Call::Free { which } if which < blocks.len() => {
                let block = blocks.swap_remove(which);
                assert!(block.is_filled(), "{call:?}");
            }
            Call::Wait => std::thread::sleep(std::time::Duration::from_millis(150)),
            _ => {}
        }
        let live: usize = blocks.iter().map(|block| block.size).sum();
        assert!(stats().live_bytes + MIB > live);
    }
    assert!(blocks.iter().all(Block::is_filled));
}
