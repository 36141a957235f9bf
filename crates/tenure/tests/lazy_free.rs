//! lazy free: what the kernel may take, and what is refused.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use libtest_mimic::Completion;
use rustix::mm::MprotectFlags;
use tenure::{
    Error, Features, HugePages, LazilyFreed, LockMode, Mapping, MemfdPages, MemoryKind, Outcome,
    PageRange, page_size,
};

tests!(
    the_kernel_takes_what_was_freed,
    what_is_taken_back_stays,
    a_write_takes_a_page_back,
    only_the_range_named_is_freed,
    nothing_is_nothing,
    a_hole_leaves_both_sides_alone,
    other_kinds_of_memory_are_refused,
    hidden_memory_is_refused,
    hugetlb_memory_is_refused,
    special_memory_is_refused,
    locked_memory_is_refused,
    droppable_memory_is_freed,
    memory_without_access_is_freed,
    memory_of_another_userfaultfd_is_freed,
    small_ranges_are_free_at_once,
    a_part_of_a_huge_page_is_freed_alone,
    a_whole_huge_page_stays_whole,
    volatility_ends,
    a_kernel_without_it_is_named;
    children:
    ask_a_kernel_without_it,
);

/// The kernel passes over pages that it is just moving (compaction), but not each time.
fn tries<T>(mut once: impl FnMut() -> T) -> impl Iterator<Item = T> {
    (0..5).map(move |_| once())
}

fn the_kernel_takes_what_was_freed() {
    let freed = || {
        let memory = anonymous(512);
        fill(memory.range());
        memory.lazy_free().unwrap()
    };
    let most = |idle: &LazilyFreed| {
        smaps_bytes(idle.range(), "LazyFree") > (512 - 32) * page_size() as u64
    };
    let idle = tries(freed).find(most).expect("most of it is lazily free");
    lazy_free_and_page_out(idle.range());
    let memory = idle.take_back().unwrap();
    assert!(is_zero(memory.range()));
}

fn what_is_taken_back_stays() {
    let memory = anonymous(512);
    fill(memory.range());
    let memory = memory.lazy_free().unwrap().take_back().unwrap();
    assert_eq!(smaps_bytes(memory.range(), "LazyFree"), 0);
    page_out(memory.range());
    assert!(is_filled(memory.range()));
}

fn a_write_takes_a_page_back() {
    let memory = anonymous(512);
    fill(memory.range());
    unsafe { memory.range().lazy_free() }.unwrap();
    let written = pages(memory.range(), 100, 3);
    fill(written);
    for part in [
        pages(memory.range(), 0, 100),
        pages(memory.range(), 103, 409),
    ] {
        lazy_free_and_page_out(part);
        assert!(is_zero(part));
    }
    page_out(written);
    assert!(is_filled(written));
}

fn only_the_range_named_is_freed() {
    let memory = anonymous(512);
    fill(memory.range());
    lazy_free_and_page_out(pages(memory.range(), 100, 200));
    assert!(is_filled(pages(memory.range(), 0, 100)));
    assert!(is_filled(pages(memory.range(), 300, 212)));
    // Half a page would be a neighbour's loss: there is no such range.
    assert!(matches!(
        PageRange::new(memory.range().start(), 1),
        Err(Error::Unaligned { .. })
    ));
}

fn nothing_is_nothing() {
    unsafe { PageRange::new(page_size(), 0).unwrap().lazy_free() }.unwrap();
}

fn a_hole_leaves_both_sides_alone() {
    let memory = anonymous(512);
    fill(memory.range());
    let hole = pages(memory.range(), 200, 1);
    raw_unmap(hole);
    let refused = memory.lazy_free().unwrap_err();
    assert!(
        matches!(refused.error, Error::Hole { hole: at, .. } if at == hole),
        "{refused}"
    );
    let range = refused.value.range();
    for part in [pages(range, 0, 200), pages(range, 201, 311)] {
        assert_eq!(smaps_bytes(part, "LazyFree"), 0);
        page_out(part);
        assert!(is_filled(part));
    }
}

fn other_kinds_of_memory_are_refused() {
    let len = 64 * page_size();
    let file = file(len);
    for (builder, kind) in [
        (Mapping::shared_anonymous(len), MemoryKind::Shared),
        (Mapping::memfd(len, MemfdPages::Base), MemoryKind::Shared),
        (
            Mapping::memfd(len, MemfdPages::Base).private(),
            MemoryKind::PrivateFile,
        ),
        (
            unsafe { Mapping::file(&file) }.private().read_write(),
            MemoryKind::PrivateFile,
        ),
    ] {
        let memory = builder.map().unwrap();
        fill(memory.range());
        let refused = memory.lazy_free().unwrap_err();
        assert!(
            matches!(refused.error, Error::WrongKind { found, .. } if found == kind),
            "{refused}"
        );
        assert_eq!(refused.error.errno(), libc::EINVAL);
        assert!(is_filled(refused.value.range()));
    }
}

fn locked_memory_is_refused() {
    let memory = anonymous(64);
    fill(memory.range());
    memory
        .lock(40 * page_size()..41 * page_size(), LockMode::Now)
        .unwrap();
    let refused = memory.lazy_free().unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    // The part before the lock has not been freed either.
    assert_eq!(smaps_bytes(refused.value.range(), "LazyFree"), 0);
    page_out(pages(refused.value.range(), 0, 40));
    assert!(is_filled(refused.value.range()));
}

fn refused_kind(range: PageRange) -> MemoryKind {
    match unsafe { range.lazy_free() } {
        Err(Error::WrongKind { found, .. }) => found,
        other => panic!("{other:?}"),
    }
}

fn hidden_memory_is_refused() -> Completion {
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if fd < 0 {
        return skip("memfd_secret is refused or missing here");
    }
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
    file.set_len(16 * page_size() as u64).unwrap();
    let memory = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
    fill(memory.range());
    assert_eq!(refused_kind(memory.range()), MemoryKind::Shared);
    assert!(is_filled(memory.range()));
    Completion::Completed
}

fn hugetlb_memory_is_refused() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge page of 2 MiB, and none can be had");
    };
    let len = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let range = PageRange::new(at as usize, len).unwrap();
    fill(range);
    assert_eq!(refused_kind(range), MemoryKind::HugeTlb);
    assert!(is_filled(range));
    raw_unmap(range);
    Completion::Completed
}

fn special_memory_is_refused() -> Completion {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return skip("this machine has no [vdso]");
    };
    let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let page = PageRange::new(start, page_size()).unwrap();
    assert_eq!(refused_kind(page), MemoryKind::Special);
    Completion::Completed
}

fn droppable_memory_is_freed() -> Completion {
    const MAP_DROPPABLE: i32 = 0x08;
    let (len, access) = (64 * page_size(), libc::PROT_READ | libc::PROT_WRITE);
    let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return skip("needs MAP_DROPPABLE (Linux 6.11)");
    }
    let range = PageRange::new(at as usize, len).unwrap();
    fill(range);
    lazy_free_and_page_out(range);
    assert!(is_zero(range));
    raw_unmap(range);
    Completion::Completed
}

fn memory_without_access_is_freed() {
    for flags in [MprotectFlags::empty(), MprotectFlags::READ] {
        let memory = anonymous(64);
        fill(memory.range());
        raw_protect(memory.range(), flags);
        lazy_free_and_page_out(memory.range());
        raw_protect(memory.range(), MprotectFlags::READ);
        assert!(is_zero(memory.range()));
    }
}

/// Its owner is asked for what was taken, as for any missing page.
fn memory_of_another_userfaultfd_is_freed() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("needs userfaultfd (Linux 5.11), which is refused or missing here");
    }
    let memory = anonymous(64);
    fill(memory.range());
    let _watcher = register_elsewhere(memory.range());
    lazy_free_and_page_out(memory.range());
    Completion::Completed
}

/// The kernel marks pages in batches of 31 for each CPU.
fn small_ranges_are_free_at_once() {
    on_one_cpu(|| {
        for page_count in (1..=33).chain([61, 62, 63, 93]) {
            let is_free_at_once = || {
                let memory = anonymous(page_count);
                fill(memory.range());
                let idle = memory.lazy_free().unwrap();
                let marked = smaps_bytes(idle.range(), "LazyFree");
                page_out(idle.range());
                marked == idle.range().len() as u64 && count_present(idle.range()) == 0
            };
            assert!(tries(is_free_at_once).any(|is| is), "{page_count} pages");
        }
    });
}

/// Memory with a huge page, and its pages; `None` where there is none to be had.
fn huge_page() -> Option<(Mapping, PageRange)> {
    const HUGE: usize = 2 << 20;
    let memory = Mapping::anonymous(2 * HUGE)
        .huge_pages(HugePages::Always)
        .map()
        .unwrap();
    fill(memory.range());
    let start = memory.range().start().next_multiple_of(HUGE);
    let range = PageRange::new(start, HUGE).unwrap();
    (smaps_bytes(range, "AnonHugePages") > 0).then_some((memory, range))
}

fn a_part_of_a_huge_page_is_freed_alone() -> Completion {
    let Some((_memory, huge)) = huge_page() else {
        return skip("no transparent huge page to be had");
    };
    let part = pages(huge, 100, 50);
    lazy_free_and_page_out(part);
    assert!(is_zero(part));
    assert!(is_filled(pages(huge, 0, 100)));
    assert!(is_filled(pages(huge, 150, huge.pages() - 150)));
    Completion::Completed
}

fn a_whole_huge_page_stays_whole() -> Completion {
    let Some((_memory, huge)) = huge_page() else {
        return skip("no transparent huge page to be had");
    };
    let before = smaps_bytes(huge, "AnonHugePages");
    on_one_cpu(|| unsafe { huge.lazy_free() }.unwrap());
    assert_eq!(smaps_bytes(huge, "AnonHugePages"), before);
    assert_eq!(smaps_bytes(huge, "LazyFree"), huge.len() as u64);
    Completion::Completed
}

/// Contents that are given up cannot be lost: what was taken reads as zeros.
fn volatility_ends() -> Completion {
    let features = Features::get();
    if !features.sigbus_on_missing() || features.madv_populate.is_err() {
        return skip("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (Linux 5.14)");
    }
    tenure::set_hand_over_delay(std::time::Duration::ZERO);
    let memory = anonymous(128);
    fill(memory.range());
    unsafe { memory.range().mark_volatile() }.unwrap();
    let given_up = pages(memory.range(), 0, 64);
    lazy_free_and_page_out(given_up);
    assert!(is_zero(given_up));
    let rest = pages(memory.range(), 64, 64);
    page_out_all(rest);
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![rest]));
    Completion::Completed
}

fn a_kernel_without_it_is_named() {
    in_child_ok("ask_a_kernel_without_it");
}

fn ask_a_kernel_without_it() {
    let memory = anonymous(64);
    fill(memory.range());
    refuse(libc::SYS_madvise, libc::EINVAL);
    let refused = memory.lazy_free().unwrap_err();
    assert!(
        matches!(
            refused.error,
            Error::Unsupported {
                feature: "MADV_FREE",
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(refused.error.errno(), libc::EOPNOTSUPP);
    assert!(is_filled(refused.value.range()));
}
