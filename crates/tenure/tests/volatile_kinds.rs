//! volatile: huge pages, merged pages, swap, and memory that is refused.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::volatile::{can_offer, is_as_told};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap_anonymous};
use tenure::{
    Error, HugePages, LockMode, Mapping, MemoryKind, Outcome, PageRange, VolatileBuffer, page_size,
};

fn missing() -> Option<&'static str> {
    tenure::set_hand_over_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    huge_pages_stay_whole,
    huge_pages_stay_whole_when_the_keeper_offers_them,
    what_is_left_of_a_huge_page_is_as_it_was,
    untouched_huge_pages_are_not_lost,
    locked_memory_is_refused,
    memory_of_the_huge_page_pool_is_refused,
    memory_is_no_longer_merged,
    what_was_merged_can_be_taken,
    swapped_pages_are_lost_when_they_are_offered_and_not_before,
    what_was_written_may_be_swapped_out,
    no_swap_file_is_left_behind;
    children:
    end_with_swap_on,
);

const HUGE: usize = 2 << 20;

/// Memory of huge pages, filled; `None` where there are none to be had.
fn huge(count: usize) -> Option<Mapping> {
    let builder = Mapping::anonymous(count * HUGE).huge_pages(HugePages::Always);
    let memory = builder.map().unwrap();
    fill(memory.range());
    (huge_bytes(memory.range()) == memory.range().len()).then_some(memory)
}

const NO_HUGE_PAGES: &str = "the kernel gives no transparent huge pages of 2 MiB here";

/// How much is mapped by huge pages in the mappings that the range is in. (Two
/// ranges of huge pages side by side would be one mapping.)
fn huge_bytes(range: PageRange) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_inside, mut kib) = (false, 0);
    for line in text.lines() {
        if let Some(bounds) = smaps_bounds(line) {
            is_inside = bounds.start < range.end() && range.start() < bounds.end;
        } else if let Some(found) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
            let found = found.trim().trim_end_matches(" kB");
            kib += found.parse::<usize>().unwrap();
        }
    }
    kib * 1024
}

fn huge_pages_stay_whole() -> Completion {
    let Some(memory) = huge(4) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
    for _ in 0..3 {
        buffer.mark_volatile();
        assert!(has_vm_flag(range, "um"));
        assert_eq!(huge_bytes(range), range.len(), "offered");
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(is_as_told(range, &outcome));
        if outcome != Outcome::Intact {
            return skip("the kernel has taken what it was offered");
        }
        assert_eq!(huge_bytes(range), range.len(), "taken back");
    }
    drop(buffer);
    // Single ones of a plain range as well.
    let memory = huge(4).unwrap();
    let range = memory.range();
    let second = pages(range, HUGE / page_size(), HUGE / page_size());
    unsafe { second.mark_volatile() }.unwrap();
    assert_eq!(huge_bytes(range), range.len());
    let outcome = unsafe { second.mark_nonvolatile() }.unwrap();
    assert!(outcome != Outcome::Intact || huge_bytes(range) == range.len());
    Completion::Completed
}

fn huge_pages_stay_whole_when_the_keeper_offers_them() -> Completion {
    tenure::set_hand_over_delay(Duration::from_millis(300));
    let Some(memory) = huge(12) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    // Half a huge page each: neighbours have to be offered in one piece.
    let parts = || (0..24).map(|part| pages(range, part * range.pages() / 24, range.pages() / 24));
    for part in parts() {
        unsafe { part.mark_volatile() }.unwrap();
    }
    wait_for("offered", || parts().all(|part| has_vm_flag(part, "um")));
    let offered_bytes = huge_bytes(range);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(is_as_told(range, &outcome));
    if outcome != Outcome::Intact {
        return skip("the kernel has taken what it was offered");
    }
    // The keeper may have looked in the middle of the marking, and so cut some.
    for huge_bytes in [offered_bytes, huge_bytes(range)] {
        assert!(huge_bytes >= range.len() / 2, "{huge_bytes}");
    }
    Completion::Completed
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn what_is_left_of_a_huge_page_is_as_it_was() -> Completion {
    let Some(memory) = huge(2) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
    buffer.mark_volatile();
    page_out_all(pages(range, 100, 10));
    let outcome = buffer.mark_nonvolatile().unwrap();
    let Outcome::Purged(runs) = &outcome else {
        panic!("a loss without a word")
    };
    assert!(runs.iter().any(|run| run.contains(pages(range, 100, 10))));
    page_out(range);
    assert!(is_as_told(range, &outcome));
    Completion::Completed
}

fn untouched_huge_pages_are_not_lost() {
    let builder = Mapping::anonymous(3 * HUGE).huge_pages(HugePages::Always);
    let mut buffer = VolatileBuffer::from_mapping(builder.map().unwrap()).unwrap();
    let range = buffer.range();
    let touched = pages(range, HUGE / page_size(), HUGE / page_size());
    fill(touched);
    buffer.mark_volatile();
    page_out(range);
    buffer.purge().unwrap();
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Purged(vec![touched])
    );
    assert!(is_zero(range));
}

fn locked_memory_is_refused() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::OnFault).unwrap();
    let refused = unsafe { memory.range().mark_volatile() }.unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
}

fn memory_of_the_huge_page_pool_is_refused() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge pages of 2 MiB are free in the pool (vm.nr_hugepages)");
    };
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), HUGE, access, flags) }.unwrap();
    let range = PageRange::new(at.addr(), HUGE).unwrap();
    let refused = unsafe { range.mark_volatile() }.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::WrongKind {
                found: MemoryKind::HugeTlb,
                ..
            }
        ),
        "{refused}"
    );
    raw_unmap(range);
    Completion::Completed
}

fn have_merged(range: PageRange) -> bool {
    let advice = Advice::LinuxMergeable;
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.is_ok()
}

fn memory_is_no_longer_merged() -> Completion {
    let memory = anonymous(64);
    let range = memory.range();
    fill(range);
    if !have_merged(range) {
        return skip("this kernel merges no pages (CONFIG_KSM)");
    }
    assert!(has_vm_flag(range, "mg"));
    let part = pages(range, 16, 32);
    unsafe { part.mark_volatile() }.unwrap();
    assert!(!has_vm_flag(part, "mg"));
    assert!(has_vm_flag(range, "mg"), "it is not volatile");
    let outcome = unsafe { part.mark_nonvolatile() }.unwrap();
    assert!(is_as_told(part, &outcome));
    Completion::Completed
}

/// Has the kernel merge pages until what is returned is dropped.
fn start_merging() -> Option<Undo> {
    let file = |name| format!("/sys/kernel/mm/ksm/{name}");
    let values = [
        ("pages_to_scan", "5000"),
        ("sleep_millisecs", "20"),
        ("run", "1"),
    ];
    let read = |(name, _)| Some((name, std::fs::read_to_string(file(name)).ok()?));
    let before: Vec<_> = values.into_iter().map(read).collect::<Option<_>>()?;
    let set_back = |(name, value): &(_, String)| std::fs::write(file(*name), value.trim()).is_ok();
    let undo = Undo::later(move || before.iter().rev().all(set_back) || !is_root());
    let set = |(name, value)| std::fs::write(file(name), value).ok();
    values.into_iter().try_for_each(set).map(|()| undo)
}

fn merged_pages() -> usize {
    let count = std::fs::read_to_string("/proc/self/ksm_merging_pages");
    count.map_or(0, |count| count.trim().parse().unwrap())
}

fn what_was_merged_can_be_taken() -> Completion {
    let memory = anonymous(64);
    let range = memory.range();
    for page in 0..range.pages() {
        // All alike.
        let page = pages(range, page, 1);
        unsafe { page.as_ptr().write_bytes(7, page.len()) };
    }
    let Some(_merging) = start_merging() else {
        return skip("may not have the kernel merge pages (/sys/kernel/mm/ksm)");
    };
    if !have_merged(range) {
        return skip("this kernel merges no pages (CONFIG_KSM)");
    }
    let end = Instant::now() + Duration::from_secs(20);
    while merged_pages() < range.pages() / 2 {
        if Instant::now() > end {
            return skip("the kernel has merged nothing within 20 s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    empty_batches();
    unsafe { range.mark_volatile() }.unwrap();
    // Counted when they are next scanned.
    wait_for("unmerged", || merged_pages() == 0);
    let half = pages(range, 0, 32);
    page_out_all(half);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(matches!(&outcome, Outcome::Purged(runs) if runs[0].contains(half)));
    Completion::Completed
}

/// A swap file, in use until it is dropped, or the process ends.
struct Swap {
    _off: Undo,
    file: tempfile::NamedTempFile,
}

impl Swap {
    const LEN: usize = 32 << 20;

    fn on() -> Result<Self, String> {
        // Swap files cannot be on tmpfs, where temporary files may be.
        let folder = env!("CARGO_TARGET_TMPDIR");
        let file = tempfile::Builder::new().prefix("swap").tempfile_in(folder);
        let mut file = file.or_else(|_| tempfile::NamedTempFile::new()).unwrap();
        let mut bytes = vec![0; Self::LEN];
        // What mkswap writes.
        let last_page = u32::try_from(Self::LEN / page_size() - 1).unwrap();
        bytes[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
        bytes[page_size() - 10..page_size()].copy_from_slice(b"SWAPSPACE2");
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        let path = std::ffi::CString::new(file.path().as_os_str().as_bytes()).unwrap();
        let name = file.path().to_owned();
        let off = {
            let path = path.clone();
            Undo::later(move || {
                let is_off = unsafe { libc::swapoff(path.as_ptr()) } == 0;
                std::fs::remove_file(&name).is_ok() && (is_off || !is_swap(&name))
            })
        };
        match unsafe { libc::swapon(path.as_ptr(), 0) } {
            0 => Ok(Self { _off: off, file }),
            _ => Err(format!("swapon: {}", std::io::Error::last_os_error())),
        }
    }
}

fn is_swap(file: &Path) -> bool {
    let all = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    all.lines()
        .any(|line| line.split_whitespace().next() == file.to_str())
}

/// Which pages are in swap.
fn swapped_out(range: PageRange) -> Vec<bool> {
    let (present, absent) = (present(range), absent(range));
    present
        .iter()
        .zip(&absent)
        .map(|(present, absent)| !present && !absent)
        .collect()
}

/// Swaps the range out, as much of it as the kernel does; whether that is all.
fn swap_out(range: PageRange) -> bool {
    (0..100).any(|_| {
        page_out(range);
        swapped_out(range).iter().all(|&is| is)
    })
}

fn swapped_pages_are_lost_when_they_are_offered_and_not_before() -> Completion {
    let _swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => return skip(&reason),
    };
    let memory = anonymous(64);
    let range = memory.range();
    fill(range);
    let half = pages(range, 0, 32);
    if !swap_out(half) {
        return skip("the kernel swaps nothing out");
    }
    // Within the delay it stays.
    tenure::set_hand_over_delay(Duration::from_secs(3600));
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert!(is_filled(range));
    // Purged, it goes, too.
    assert!(swap_out(half));
    unsafe { range.mark_volatile() }.unwrap();
    unsafe { half.purge() }.unwrap();
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Purged(vec![half])
    );
    // Offered, it is lost.
    fill(range);
    assert!(swap_out(half));
    tenure::set_hand_over_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(
        matches!(&outcome, Outcome::Purged(runs) if runs[0].contains(half)),
        "{outcome:?}"
    );
    assert!(is_as_told(range, &outcome));
    Completion::Completed
}

fn end_with_swap_on() {
    let swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => {
            println!("{reason}");
            return;
        }
    };
    assert!(is_swap(swap.file.path()));
    println!("on {}", swap.file.path().display());
    std::process::abort();
}

/// Neither on nor there, however a test ends.
fn no_swap_file_is_left_behind() -> Completion {
    let output = in_child("end_with_swap_on");
    let text = String::from_utf8(output.stdout).unwrap();
    let Some(name) = text.strip_prefix("on ") else {
        return skip(text.trim());
    };
    let name = Path::new(name.trim());
    wait_for("off", || !is_swap(name) && !name.exists());
    Completion::Completed
}

fn what_was_written_may_be_swapped_out() -> Completion {
    let _swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => return skip(&reason),
    };
    let mut buffer = VolatileBuffer::from_mapping(anonymous(64)).unwrap();
    let range = buffer.range();
    fill(range);
    buffer.mark_volatile();
    fill(range);
    if !swap_out(range) {
        return skip("the kernel swaps nothing out");
    }
    let mut copy = vec![0; page_size()];
    buffer
        .read_volatile_into(5 * page_size(), &mut copy)
        .unwrap();
    assert_eq!(copy, pattern(pages(range, 5, 1)));
    assert_eq!(buffer.mark_nonvolatile().unwrap(), Outcome::Intact);
    assert!(is_filled(range));
    Completion::Completed
}
