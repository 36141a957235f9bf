//! lazy free: what the kernel may reclaim, and what is rejected.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::merging::{advise_mergeable, merged_pages, scan_fully, start_merging};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::MprotectFlags;
use tenure::{
    Error, Features, HugePages, LockMode, Mapping, MemfdPages, MemoryKind, Outcome, PageRange,
    lazy_free::LazilyFreed, page_size,
};

tests!(
    lazily_freed_pages_are_reclaimed,
    lazily_freed_memory_reused_is_not_reclaimed,
    lazily_freed_page_written_is_not_reclaimed,
    lazy_free_keeps_pages_outside_range,
    lazy_free_of_empty_range_is_ok,
    lazy_free_of_range_with_hole_changes_nothing,
    lazy_free_of_unsupported_memory_kind_is_rejected,
    lazy_free_of_secret_memory_is_rejected,
    [exclusive] lazy_free_of_hugetlb_memory_is_rejected,
    lazy_free_of_special_memory_is_rejected,
    lazy_free_of_locked_memory_is_rejected,
    droppable_memory_is_freed,
    inaccessible_memory_is_freed,
    memory_of_foreign_userfaultfd_is_freed,
    small_range_is_lazily_free_without_full_batch,
    part_of_huge_page_is_freed_alone,
    lazily_freed_huge_page_is_not_split,
    lazy_free_ends_volatility,
    [exclusive] page_merged_with_lazily_freed_one_is_kept,
    lazy_free_without_madv_free_is_unsupported;
    children:
    free_without_madv_free,
);

/// The kernel skips pages that it is migrating (compaction), but not each time.
fn five_tries<T>(mut once: impl FnMut() -> T) -> impl Iterator<Item = T> {
    (0..5).map(move |_| once())
}

fn lazily_freed_pages_are_reclaimed() {
    let freed = || {
        let memory = anonymous(512);
        fill(memory.range());
        memory.lazy_free().unwrap()
    };
    let mostly_lazily_free = |idle: &LazilyFreed| {
        smaps_bytes(idle.range(), "LazyFree") > (512 - 32) * page_size() as u64
    };
    let idle = five_tries(freed)
        .find(mostly_lazily_free)
        .expect("most pages are lazily free");
    lazy_free_and_page_out(idle.range());
    let memory = idle.reuse().unwrap();
    assert!(is_zero(memory.range()));
}

fn lazily_freed_memory_reused_is_not_reclaimed() {
    let memory = anonymous(512);
    fill(memory.range());
    let memory = memory.lazy_free().unwrap().reuse().unwrap();
    assert_eq!(smaps_bytes(memory.range(), "LazyFree"), 0);
    page_out(memory.range());
    assert!(is_filled(memory.range()));
}

fn lazily_freed_page_written_is_not_reclaimed() {
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

fn lazy_free_keeps_pages_outside_range() {
    let memory = anonymous(512);
    fill(memory.range());
    lazy_free_and_page_out(pages(memory.range(), 100, 200));
    assert!(is_filled(pages(memory.range(), 0, 100)));
    assert!(is_filled(pages(memory.range(), 300, 212)));
    // Half a page would include a neighbour's bytes: no such range exists.
    assert!(matches!(
        PageRange::new(memory.range().start(), 1),
        Err(Error::Unaligned { .. })
    ));
}

fn lazy_free_of_empty_range_is_ok() {
    unsafe { PageRange::new(page_size(), 0).unwrap().lazy_free() }.unwrap();
}

fn lazy_free_of_range_with_hole_changes_nothing() {
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

fn lazy_free_of_unsupported_memory_kind_is_rejected() {
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

fn lazy_free_of_locked_memory_is_rejected() {
    let memory = anonymous(64);
    fill(memory.range());
    memory
        .lock(40 * page_size()..41 * page_size(), LockMode::Now)
        .unwrap();
    let refused = memory.lazy_free().unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    // The part before the lock was not freed either.
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

fn lazy_free_of_secret_memory_is_rejected() -> Completion {
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

fn lazy_free_of_hugetlb_memory_is_rejected() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge page of 2 MiB can be allocated");
    };
    let len = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
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

fn lazy_free_of_special_memory_is_rejected() -> Completion {
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

fn inaccessible_memory_is_freed() {
    for flags in [MprotectFlags::empty(), MprotectFlags::READ] {
        let memory = anonymous(64);
        fill(memory.range());
        raw_protect(memory.range(), flags);
        lazy_free_and_page_out(memory.range());
        raw_protect(memory.range(), MprotectFlags::READ);
        assert!(is_zero(memory.range()));
    }
}

/// Checks that the userfaultfd's owner has to resolve reclaimed pages, as any missing page.
fn memory_of_foreign_userfaultfd_is_freed() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("needs userfaultfd (Linux 5.11), which is refused or missing here");
    }
    let memory = anonymous(64);
    fill(memory.range());
    let _watcher = register_with_foreign_userfaultfd(memory.range());
    lazy_free_and_page_out(memory.range());
    Completion::Completed
}

/// The kernel marks pages in batches of 31 for each CPU.
fn small_range_is_lazily_free_without_full_batch() {
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
            assert!(
                five_tries(is_free_at_once).any(|is| is),
                "{page_count} pages"
            );
        }
    });
}

/// Maps memory with a huge page, and returns it with the huge page's range; `None` where
/// the kernel gives none.
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

fn part_of_huge_page_is_freed_alone() -> Completion {
    let Some((_memory, huge)) = huge_page() else {
        return skip("no transparent huge page can be allocated");
    };
    let part = pages(huge, 100, 50);
    lazy_free_and_page_out(part);
    assert!(is_zero(part));
    assert!(is_filled(pages(huge, 0, 100)));
    assert!(is_filled(pages(huge, 150, huge.pages() - 150)));
    Completion::Completed
}

fn lazily_freed_huge_page_is_not_split() -> Completion {
    let Some((_memory, huge)) = huge_page() else {
        return skip("no transparent huge page can be allocated");
    };
    let before = smaps_bytes(huge, "AnonHugePages");
    on_one_cpu(|| unsafe { huge.lazy_free() }.unwrap());
    assert_eq!(smaps_bytes(huge, "AnonHugePages"), before);
    assert_eq!(smaps_bytes(huge, "LazyFree"), huge.len() as u64);
    Completion::Completed
}

/// Freed contents cannot be purged: reclaimed pages read as zeros.
fn lazy_free_ends_volatility() -> Completion {
    let features = Features::get();
    if !features.sigbus_on_missing() || features.madv_populate.is_err() {
        return skip("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (Linux 5.14)");
    }
    tenure::volatile::set_offer_delay(std::time::Duration::ZERO);
    let memory = anonymous(128);
    fill(memory.range());
    unsafe { memory.range().mark_volatile() }.unwrap();
    let freed = pages(memory.range(), 0, 64);
    lazy_free_and_page_out(freed);
    assert!(is_zero(freed));
    let rest = pages(memory.range(), 64, 64);
    page_out_all(rest);
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![rest]));
    Completion::Completed
}

fn lazy_free_without_madv_free_is_unsupported() {
    in_child_ok("free_without_madv_free");
}

fn free_without_madv_free() {
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

/// Writes the same to each mapping, and something else to each page of it.
fn equal_mappings() -> [Mapping; 2] {
    [(); 2].map(|()| {
        let mut memory = anonymous(64);
        use_base_pages(memory.range());
        let bytes = memory.as_mut_slice().unwrap();
        for (number, page) in (1..).zip(bytes.chunks_exact_mut(page_size())) {
            page.fill(number);
        }
        assert!(advise_mergeable(memory.range()));
        memory
    })
}

fn page_merged_with_lazily_freed_one_is_kept() -> Completion {
    let Some(_merging) = start_merging() else {
        return skip("may not make the kernel merge pages (/sys/kernel/mm/ksm)");
    };
    let [freed, other] = equal_mappings();
    if !scan_fully() || merged_pages() < 100 {
        return skip("the kernel does not merge pages");
    }
    other.munmap().unwrap();
    drain_pending();
    // tenure looks every 100 ms whether the kernel merges any.
    std::thread::sleep(Duration::from_millis(150));
    unsafe { freed.range().lazy_free() }.unwrap();
    flush_all_batches();
    // The kernel merges them with one another, and with what was freed if that is still there.
    let [kept, other] = equal_mappings();
    assert!(scan_fully());
    // The kernel reclaims on request what one process alone has.
    other.munmap().unwrap();
    freed.munmap().unwrap();
    drain_pending();
    page_out(kept.range());
    let bytes = kept.as_slice();
    let is_kept = |(number, page): (u8, &[u8])| page.iter().all(|&byte| byte == number);
    assert!((1..).zip(bytes.chunks_exact(page_size())).all(is_kept));
    Completion::Completed
}
