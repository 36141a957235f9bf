//! Memory that the kernel merges with equal pages (KSM).

use std::time::{Duration, Instant};

use rustix::mm::Advice;
use tenure::PageRange;

use super::pool::wait_until;
use super::*;

pub fn advise_mergeable(range: PageRange) -> bool {
    let advice = Advice::LinuxMergeable;
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.is_ok()
}

/// Makes the kernel merge pages until the returned value is dropped.
pub fn start_merging() -> Option<Undo> {
    let file = |name| format!("/sys/kernel/mm/ksm/{name}");
    let values = [
        ("pages_to_scan", "5000"),
        ("sleep_millisecs", "20"),
        ("run", "1"),
    ];
    let lock = lock_setting(&file("run"))?;
    let read = |(name, _)| Some((name, std::fs::read_to_string(file(name)).ok()?));
    let before: Vec<_> = values.into_iter().map(read).collect::<Option<_>>()?;
    let set_back = |(name, value): &(_, String)| std::fs::write(file(*name), value.trim()).is_ok();
    let undo = Undo::later(move || {
        let is_undone = before.iter().rev().all(set_back) || !is_root();
        drop(lock);
        is_undone
    });
    let set = |(name, value)| std::fs::write(file(name), value).ok();
    values.into_iter().try_for_each(set).map(|()| undo)
}

pub fn merged_pages() -> usize {
    let count = std::fs::read_to_string("/proc/self/ksm_merging_pages");
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Waits until the kernel, which merges pages, has looked at each often enough. Returns whether it
/// does.
pub fn scan_fully() -> bool {
    let scans = || {
        let count = std::fs::read_to_string("/sys/kernel/mm/ksm/full_scans").ok()?;
        count.trim().parse::<u64>().ok()
    };
    let before = scans();
    wait_until(|| {
        before
            .zip(scans())
            .is_some_and(|(before, now)| now >= before + 5)
    })
}

/// Makes the kernel merge equal pages of the range until most of it is. Returns whether it
/// does.
pub fn merge(range: PageRange) -> bool {
    let Some(_merging) = start_merging() else {
        return false;
    };
    let end = Instant::now() + Duration::from_secs(20);
    let is_merged = || merged_pages() >= range.pages() / 4 * 3;
    advise_mergeable(range)
        && std::iter::repeat_with(is_merged)
            .inspect(|_| std::thread::sleep(Duration::from_millis(20)))
            .take_while(|_| Instant::now() < end)
            .any(|is_merged| is_merged)
}
