//! What is fuzzed: bodies that take any bytes and panic where tenure is wrong.
//! Each stands beside what it tries. `fuzz/` has them run by libFuzzer, which sets
//! `cfg(fuzzing)`; the tests here run them over what it has found.

mod input;
#[cfg(test)]
mod replay;

pub(crate) use input::{Input, PAGES, Step, range, steps};

use crate::background::freeing;
use crate::ground::sys;
use crate::verbs::fuzzing as verbs;

/// What keeps ranges, each beside a naive model of single pages.
pub fn registries(data: &[u8]) {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 6 {
        0 => verbs::registry(data),
        1 => verbs::marks(data),
        2 => verbs::runs(data),
        3 => verbs::objects(data),
        4 => verbs::known(data),
        _ => freeing::fuzzing::queue(data),
    }
}

/// What reads files of `/proc` and of cgroups: any text, and text as the kernel
/// writes it, which must come out as it went in.
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
