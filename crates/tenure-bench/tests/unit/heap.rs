use std::time::Duration;

use super::allocators::{Allocator, HEAP};
use super::scale::{GIB, MIB};
use super::*;
use crate::measure::Headroom;

#[test]
fn environment_loads_the_library_with_its_options() {
    let tenure = Allocator::preloaded(TENURE, "/lib/x.so").with(HEAP);
    let expected = [
        ("LD_PRELOAD", "/lib/x.so".into()),
        ("TENURE_HEAP", "1".into()),
    ];
    assert_eq!(tenure.environment, expected);
}

fn scale(sizes: Sizes, headroom_bytes: usize) -> Result<Scale> {
    let settings = Settings {
        seed: 1,
        sizes,
        headroom: Headroom::of_bytes(headroom_bytes),
    };
    Scale::of(&settings, 6)
}

#[test]
fn scale_with_headroom_is_as_wanted() {
    for sizes in [Sizes::Medium, Sizes::Full] {
        let scale = scale(sizes, 64 * GIB).unwrap();
        assert_eq!(scale.search.chunks, 512);
        assert_eq!(scale.threads, [1, 2, 4, 8]);
        assert_eq!(scale.freed_len, 4 * GIB);
        assert!(scale.moments.contains(&Duration::from_secs(2)));
        assert_eq!(scale.burst.burst_bytes, 4 * scale.burst.live_bytes);
        assert!(scale.notes.is_empty(), "{:?}", scale.notes);
    }
}

#[test]
fn scale_with_little_headroom_shrinks_with_a_note() {
    let scale = scale(Sizes::Medium, 600 * MIB).unwrap();
    assert_eq!(scale.freed_len, 450 * MIB);
    assert!(6 * (scale.burst.live_bytes + scale.burst.burst_bytes) <= 450 * MIB);
    assert_eq!(scale.grown_len, 128 * MIB, "a power of two");
    assert!(scale.notes.iter().all(|note| note.starts_with("Size: ")));
    assert_eq!(scale.notes.len(), 4, "{:?}", scale.notes);
}

#[test]
fn limit_leaves_headroom_beside_live_memory() {
    assert!(Scale::limit_bytes(128 * MIB) > 165 * MIB);
}
