//! How many addresses the process may map.

use std::fs::File;
use std::io::Read as _;

use rustix::process::Resource;

use super::advise::{LockState, lock_state};
use super::process::limit;
use super::{map, page_size};
use crate::ground::range::PageRange;

/// Returns how much more this process may map, by RLIMIT_AS and RLIMIT_DATA, in bytes;
/// `usize::MAX` where neither is set, and `None` where its use cannot be read.
///
/// (A mapping as a probe would take the addresses from other threads for that moment.)
pub(crate) fn mappable_bytes() -> Option<usize> {
    let limits = [limit(Resource::As), limit(Resource::Data)];
    if limits == [None, None] {
        return Some(usize::MAX);
    }
    let left = limits.into_iter().zip(taken_bytes()?);
    let left = left.filter_map(|(limit, taken)| Some(limit?.saturating_sub(taken)));
    Some(left.min().map_or(usize::MAX, |bytes| bytes as usize))
}

/// Returns what counts against RLIMIT_AS and RLIMIT_DATA, from `/proc/thread-self/statm`,
/// without an allocation, for which there may be no memory. (The data counts stacks, too;
/// RLIMIT_DATA does not.)
fn taken_bytes() -> Option<[u64; 2]> {
    let mut contents = [0; 256];
    let mut file = File::open("/proc/thread-self/statm").ok()?;
    let len = file.read(&mut contents).ok()?;
    let text = str::from_utf8(contents.get(..len)?).ok()?;
    let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (all, data) = (pages.next()?.ok()?, pages.nth(4)?.ok()?);
    Some([all, data].map(|pages| pages.saturating_mul(page_size() as u64)))
}

/// Returns whether mappings are charged against the commit limit of the machine
/// (`vm.overcommit_memory` = 2), or whether that cannot be read.
pub(crate) fn may_be_strict_overcommit() -> bool {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    mode.map_or(true, |mode| mode.trim() == "2")
}

/// Returns whether the process may map so many addresses more, by all its limits, for what
/// leaves a part of them to others. Two of these a mapping alone tells, which is made and
/// unmapped: RLIMIT_MEMLOCK under `mlockall(MCL_FUTURE)`, and that of strict overcommit.
pub fn may_map(bytes: usize) -> bool {
    if mappable_bytes().is_none_or(|left| left < bytes) {
        return false;
    }
    if !may_be_strict_overcommit() && !locks_mappings() {
        return true;
    }
    map::reserve_writable(bytes).is_ok_and(unmap)
}

/// Returns whether the process locks what it maps, and a limit may apply to that.
fn locks_mappings() -> bool {
    if limit(Resource::Memlock).is_none() {
        return false;
    }
    map::reserve(page_size()).is_ok_and(|page| {
        let state = lock_state(page);
        unmap(page) && state == Ok(LockState::Locked)
    })
}

fn unmap(probe: PageRange) -> bool {
    // SAFETY: the callers have just mapped it, and nobody uses it.
    unsafe { map::unmap(probe) }.is_ok()
}
