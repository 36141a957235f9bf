//! The fuzz targets: functions that take any bytes and panic where tenure is
//! wrong. Each target stands beside the code that it tests. `fuzz/` has
//! libFuzzer run them, which sets `cfg(fuzzing)`; the tests here replay its
//! corpus.

mod input;
#[cfg(test)]
mod replay;

pub(crate) use input::{Input, PAGES, Step, range, steps};

use crate::background::freeing;
use crate::ground::sys;
use crate::verbs::fuzzing as verbs;

/// Fuzzes the registries of ranges, each beside a naive model of single pages.
pub fn registries(data: &[u8]) {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 6 {
        0 => verbs::registry(data),
        1 => verbs::marks(data),
        2 => verbs::free_extents(data),
        3 => verbs::objects(data),
        4 => verbs::freed_ranges(data),
        _ => freeing::fuzzing::queue(data),
    }
}

/// Fuzzes the parsers of `/proc` and cgroup files: with any text, and with text
/// as the kernel writes it, which they must return unchanged.
pub fn parsers(data: &[u8]) {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 12 {
        0 => sys::fuzzing::maps(data),
        1 => sys::fuzzing::maps_written(data),
        2 => sys::smaps::fuzzing::text(data),
        3 => sys::smaps::fuzzing::written(data),
        4 => sys::smaps::fuzzing::status(data),
        5 => sys::cgroup::fuzzing::text(data),
        6 => sys::cgroup::fuzzing::written(data),
        7 => sys::fuzzing::pressure(data),
        8 => sys::fuzzing::pressure_written(data),
        9 => sys::fuzzing::meminfo(data),
        10 => sys::fuzzing::vmstat(data),
        _ => sys::fuzzing::list(data),
    }
}
