//! The page pool: configure, recycle into it, and populate from it.

use std::time::Duration;

use tenure::pool::{self, PoolOptions};
use tenure::{Access, Features, HugePages, Mapping, MappingBuilder};

use super::super::case::{Case, again};
use super::super::common::{fill, is_still_mapped, is_zero, pages, tag};
use super::Group;

pub const ALL: Group = &[
    ("pool_configure", configure),
    ("pool_to_mapping", |case| cycle(case, 32 << 20)),
    ("pool_to_memory", |case| cycle(case, 8 << 20)),
];

fn turn_on(case: &Case, bytes: usize) {
    let options = PoolOptions::new().max_bytes(bytes).recycle_released(true);
    case.attempt_twice(|| pool::configure(&options));
}

/// Turns the pool off, which cannot fail.
fn turn_off(case: &Case) {
    case.armed(|| pool::configure(&PoolOptions::new())).unwrap();
    assert_eq!(pool::stats().bytes, 0);
}

fn configure(case: &Case) {
    turn_on(case, 8 << 20);
    turn_off(case);
}

fn base_pages(len: usize) -> MappingBuilder<'static> {
    Mapping::anonymous(len).huge_pages(HugePages::Never)
}

/// Recycles filled memory and populates the same amount, in a new mapping and in one that is
/// there: all of it is zeros, whatever failed.
fn cycle(case: &Case, len: usize) {
    if Features::get().mremap_dontunmap.is_err() || Features::get().madv_populate.is_err() {
        return;
    }
    turn_on(case, len);
    recycle(case, again(base_pages(len).map()));
    let memory = case.attempt_twice(|| base_pages(len).map_populated());
    assert!(is_zero(memory.range()));
    discard_and_populate(case, memory);
    turn_off(case);
}

/// Discards filled memory and populates it again: released pages enter the pool.
fn discard_and_populate(case: &Case, mut memory: Mapping) {
    fill(memory.range());
    tag(memory.range());
    case.attempt_twice(|| memory.discard(..));
    case.armed(|| tenure::drain(Some(Duration::from_secs(20))).unwrap());
    case.attempt_twice(|| memory.populate(.., Access::Write));
    assert!(is_zero(memory.range()));
}

fn recycle(case: &Case, memory: Mapping) {
    let range = memory.range();
    fill(range);
    tag(range);
    case.armed(|| {
        drop(memory.recycle());
        tenure::drain(Some(Duration::from_secs(20))).unwrap();
    });
    // Where it was refused it stays mapped.
    if is_still_mapped(pages(range, 0, 1)) {
        unsafe { range.munmap() }.unwrap();
        tenure::drain(Some(Duration::from_secs(20))).unwrap();
    }
}
