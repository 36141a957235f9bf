//! release: what is unmapped or discarded, what stays, and what a child sees of it.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use libtest_mimic::Completion;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use tenure::{
    Access, Error, Features, HugePages, LockMode, Mapping, MemfdPages, MemoryKind, PageRange,
    drain, page_size, release::ReleaseLimits,
};

tests!(
    munmap_of_any_size_unmaps_and_frees,
    dropped_mapping_is_unmapped,
    munmap_of_middle_keeps_both_ends,
    munmap_across_mappings_and_holes_unmaps_all,
    munmap_past_end_of_address_space_changes_nothing,
    munmap_of_sealed_memory_changes_nothing,
    munmap_of_files_and_shared_memory_unmaps,
    munmap_of_locked_range_uncharges_immediately,
    discarded_memory_reads_as_zeros,
    discard_keeps_neighbours_and_rejects_unaligned_bounds,
    discarded_memory_keeps_flags_and_stays_writable,
    discard_across_mappings_reads_as_zeros,
    discard_of_shared_memory_is_rejected,
    discard_of_range_with_hole_is_rejected,
    discard_of_locked_memory_is_rejected,
    release_of_empty_range_is_ok,
    drain_timeout_reports_pending_bytes,
    pending_memory_is_not_dumped,
    forked_child_does_not_inherit_pending_memory,
    forked_child_releases_memory,
    fork_during_release_inherits_no_pending_memory,
    [exclusive] hugetlb_memory_is_unmapped_and_discard_is_rejected,
    discarded_private_file_reads_as_file_again,
    release_of_over_a_gib_at_any_offset_is_complete,
    gib_mapping_is_gib_aligned_without_excess,
    munmapped_shared_memory_stays_in_child,
    memfd_is_sealable_when_munmap_returns,
    unmapped_memfd_leaves_no_descriptor,
    munmapped_volatile_range_is_unregistered,
    munmap_sync_leaves_nothing_pending,
    munmap_spares_counter_page_mapped_into_its_hole;
    children:
    munmap_small_range_first,
    munmap_large_range_first,
);

const MIB: usize = 1 << 20;

fn munmap_of_any_size_unmaps_and_frees() {
    drain_pending();
    ReleaseLimits::default().max_active(1).set();
    let before_kib = status_kib("VmRSS");
    let before_size_kib = status_kib("VmSize");
    for page_count in [
        1,
        4 * MIB / page_size() - 1,
        4 * MIB / page_size(),
        64 * MIB / page_size() + 1,
    ] {
        let memory = anonymous(page_count);
        fill(memory.range());
        let range = memory.range();
        memory.munmap().unwrap();
        assert!(!is_still_mapped(range), "{page_count} pages");
    }
    drain_pending();
    assert!(status_kib("VmRSS") < before_kib + 4096);
    // Only the worker's stack, and the addresses its allocator reserves, have been added.
    assert!(status_kib("VmSize") < before_size_kib + 80 * 1024);
    ReleaseLimits::default().set();
}

/// Checks that munmap spares the page of counters, which the kernel maps into the hole
/// where a page fits.
fn munmap_before_counters_exist(page_count: usize) {
    let map = |page_count: usize| {
        let (len, nowhere) = (page_count * page_size(), std::ptr::null_mut());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = unsafe { mmap_anonymous(nowhere, len, access, MapFlags::PRIVATE) };
        PageRange::new(start.unwrap().addr(), len).unwrap()
    };
    let whole = map(page_count);
    tag(whole);
    // Fills all other gaps above the range.
    while map(1).start() > whole.start() {}
    let hole = pages(whole, 5, 1);
    raw_unmap(hole);
    unsafe { whole.munmap() }.unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_counters = maps.lines().find(|line| line.contains("tenure-stats"));
    let start = format!("{:x}-", hole.start());
    assert!(of_counters.unwrap().starts_with(&start), "{of_counters:?}");
    assert_eq!(tenure::stats().munmap.calls, 1);
    for page in [0, 4, 6, page_count - 1] {
        assert!(!is_still_mapped(pages(whole, page, 1)), "{page}");
    }
}

fn munmap_small_range_first() {
    munmap_before_counters_exist(16);
}

fn munmap_large_range_first() {
    munmap_before_counters_exist(16 * MIB / page_size());
}

fn munmap_spares_counter_page_mapped_into_its_hole() {
    in_child_ok("munmap_small_range_first");
    in_child_ok("munmap_large_range_first");
}

fn dropped_mapping_is_unmapped() {
    let memory = large();
    let range = memory.range();
    drop(memory);
    assert!(!is_still_mapped(range));
    assert!(!is_still_mapped(pages(range, range.pages() - 1, 1)));
}

fn munmap_of_middle_keeps_both_ends() {
    let memory = large();
    let range = memory.range();
    let middle = pages(range, 100, 8 * MIB / page_size());
    let behind = PageRange::new(middle.end(), range.end() - middle.end()).unwrap();
    let before = pages(range, 0, 100);
    fill(before);
    fill(behind);
    unsafe { middle.munmap() }.unwrap();
    assert!(!is_still_mapped(middle));
    let keeps_both = || is_filled(before) && is_filled(behind);
    assert!(keeps_both());
    // What tells that the middle is plain memory has no effect beside it.
    assert_eq!(fork(|| i32::from(!keeps_both())), 0);
    // Another thread's stack may lie in the hole.
    std::mem::forget(memory);
}

fn munmap_across_mappings_and_holes_unmaps_all() {
    // The worker is there before the range goes: its stack must not come to lie in it.
    drop(large());
    drain_pending();
    let memory = large();
    let range = memory.range();
    let dumped_not = pages(range, range.pages() / 8, range.pages() / 5);
    unsafe {
        rustix::mm::madvise(
            dumped_not.as_ptr().cast(),
            dumped_not.len(),
            rustix::mm::Advice::LinuxDontDump,
        )
    }
    .unwrap();
    let hole = range.pages() / 2;
    raw_unmap(pages(range, hole, 5));
    memory.munmap().unwrap();
    for page in [0, hole / 4, hole - 1, hole + 5, range.pages() - 1] {
        assert!(!is_still_mapped(pages(range, page, 1)), "page {page}");
    }
    // munmap allows a range of holes only.
    unsafe { range.munmap() }.unwrap();
}

fn munmap_past_end_of_address_space_changes_nothing() {
    // In a child: it would lose all that lies above.
    let status = fork(|| {
        let memory = large();
        fill(memory.range());
        let start = memory.range().start();
        for len in [1 << 62, usize::MAX / page_size() * page_size() - start] {
            let range = PageRange::new(start, len).unwrap();
            // SAFETY: the kernel refuses, and nothing is unmapped.
            let error = unsafe { range.munmap() }.unwrap_err();
            assert!(is_errno(&error, libc::EINVAL), "{error}");
            assert!(is_filled(memory.range()));
        }
        0
    });
    assert_eq!(status, 0);
}

fn is_errno(error: &Error, wanted: i32) -> bool {
    matches!(error, Error::SystemAt { errno, .. } if errno.raw_os_error() == wanted)
}

fn munmap_of_sealed_memory_changes_nothing() -> Completion {
    let seal = |range: PageRange| unsafe {
        libc::syscall(libc::SYS_mseal, range.start(), range.len(), 0) == 0
    };
    // In children, because sealed memory stays until the process ends.
    let can_seal = fork(|| i32::from(!seal(large().range())));
    if can_seal != 0 {
        return Completion::ignored_with("this kernel has no mseal (before Linux 6.10)");
    }
    let status = fork(|| {
        let memory = std::mem::ManuallyDrop::new(large());
        let range = memory.range();
        fill(range);
        assert!(seal(pages(range, range.pages() - 300, 300)));
        // One mapping that is sealed, and several of which the last one is.
        let whole = std::mem::ManuallyDrop::new(large());
        fill(whole.range());
        assert!(seal(whole.range()));
        for refused in [range, whole.range()] {
            // SAFETY: the kernel refuses, and nothing is unmapped.
            let error = unsafe { refused.munmap() }.unwrap_err();
            assert!(matches!(error, Error::Sealed { .. }), "{error}");
            assert!(is_filled(refused));
            assert_eq!(fork(|| i32::from(!is_filled(refused))), 0, "in a child");
        }
        0
    });
    assert_eq!(status, 0);
    Completion::Completed
}

fn munmap_of_files_and_shared_memory_unmaps() {
    let file = file(8 * MIB);
    for builder in [
        Mapping::shared_anonymous(8 * MIB),
        Mapping::memfd(8 * MIB, MemfdPages::Base),
        Mapping::memfd(8 * MIB, MemfdPages::Base).private(),
        unsafe { Mapping::file(&file) },
        unsafe { Mapping::file(&file) }.private().read_write(),
    ] {
        let memory = builder.huge_pages(HugePages::Never).map().unwrap();
        memory.populate(.., Access::Read).unwrap();
        let range = memory.range();
        tag(range);
        assert!(is_still_mapped(range));
        memory.munmap().unwrap();
        assert!(!is_still_mapped(range));
    }
}

fn munmap_of_locked_range_uncharges_immediately() {
    let memory = anonymous(4 * MIB / page_size());
    let before = status_kib("VmLck");
    let deferred = tenure::stats().deferred_free;
    memory.lock(.., LockMode::Now).unwrap();
    memory.munmap().unwrap();
    assert_eq!(status_kib("VmLck"), before);
    // A worker that is quick would uncharge it as well.
    assert_eq!(tenure::stats().deferred_free, deferred);
}

fn discarded_memory_reads_as_zeros() {
    for page_count in [1, 100, 64 * MIB / page_size() + 1] {
        let mut memory = anonymous(page_count);
        fill(memory.range());
        memory.discard(..).unwrap();
        assert_eq!(count_present(memory.range()), 0);
        assert!(is_zero(memory.range()));
        fill(memory.range());
        assert!(is_filled(memory.range()));
    }
}

fn discard_keeps_neighbours_and_rejects_unaligned_bounds() {
    let mut memory = large();
    fill(memory.range());
    let from = 10 * page_size();
    let to = memory.len() - 7 * page_size();
    memory.discard(from..to).unwrap();
    assert!(is_filled(pages(memory.range(), 0, 10)));
    assert!(is_filled(pages(
        memory.range(),
        memory.range().pages() - 7,
        7
    )));
    assert!(memory.as_slice()[from..to].iter().all(|&byte| byte == 0));
    let error = memory.discard(1..page_size()).unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
    let error = memory.discard(..page_size() + 1).unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
}

fn discarded_memory_keeps_flags_and_stays_writable() {
    let mut memory = Mapping::anonymous(64 * MIB)
        .no_dump()
        .huge_pages(HugePages::Always)
        .map()
        .unwrap();
    memory.as_mut_slice().unwrap().fill(1);
    let before = vm_flags(memory.range());
    memory.discard(..).unwrap();
    assert_eq!(vm_flags(memory.range()), before);
    assert!(has_vm_flag(memory.range(), "dd") && has_vm_flag(memory.range(), "hg"));
    memory.as_mut_slice().unwrap().fill(2);
}

fn discard_across_mappings_reads_as_zeros() {
    let mut memory = large();
    let range = memory.range();
    fill(range);
    let part = pages(range, range.pages() / 8, range.pages() / 5);
    unsafe {
        rustix::mm::madvise(
            part.as_ptr().cast(),
            part.len(),
            rustix::mm::Advice::LinuxDontDump,
        )
    }
    .unwrap();
    memory.discard(..).unwrap();
    assert!(is_zero(range));
}

fn discard_of_shared_memory_is_rejected() {
    let file = file(8 * MIB);
    for (builder, kind) in [
        (Mapping::shared_anonymous(8 * MIB), MemoryKind::Shared),
        (
            Mapping::memfd(8 * MIB, MemfdPages::Base),
            MemoryKind::Shared,
        ),
        (
            unsafe { Mapping::file(&file) }.read_write(),
            MemoryKind::Shared,
        ),
    ] {
        let mut memory = builder.map().unwrap();
        fill(memory.range());
        let error = memory.discard(..).unwrap_err();
        assert!(
            matches!(error, Error::WrongKind { found, .. } if found == kind),
            "{error}"
        );
        assert!(is_filled(memory.range()));
    }
}

fn discard_of_range_with_hole_is_rejected() {
    let mut memory = large();
    fill(memory.range());
    let hole = pages(memory.range(), memory.range().pages() - 400, 1);
    raw_unmap(hole);
    let error = memory.discard(..).unwrap_err();
    assert!(
        matches!(error, Error::Hole { hole: at, .. } if at == hole),
        "{error}"
    );
    assert!(is_filled(pages(
        memory.range(),
        0,
        memory.range().pages() - 400
    )));
}

fn discard_of_locked_memory_is_rejected() {
    let mut memory = large();
    fill(memory.range());
    memory
        .lock(memory.len() - page_size().., LockMode::OnFault)
        .unwrap();
    let error = memory.discard(..).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(is_filled(memory.range()));
}

fn release_of_empty_range_is_ok() {
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.munmap() }.unwrap();
    unsafe { nowhere.discard() }.unwrap();
    let mut memory = anonymous(1);
    fill(memory.range());
    memory.discard(0..0).unwrap();
    assert!(is_filled(memory.range()));
}

/// Releases half a GiB, which is deferred whole beside a headroom of twice that; returns how
/// many bytes are pending.
fn release_half_a_gib() -> Result<usize, Completion> {
    drain_pending();
    if let Some(skipped) = skip_without_headroom(3 * 512 * MIB) {
        return Err(skipped);
    }
    let memory = anonymous(512 * MIB / page_size());
    memory.populate(.., Access::Write).unwrap();
    let len = memory.len();
    memory.munmap().unwrap();
    Ok(len)
}

fn drain_timeout_reports_pending_bytes() -> Completion {
    let len = match release_half_a_gib() {
        Ok(len) => len,
        Err(skipped) => return skipped,
    };
    let error = drain(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error, Error::TimedOut { pending_bytes: len });
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    drain(None).unwrap();
    drain(Some(Duration::ZERO)).unwrap();
    Completion::Completed
}

fn pending_memory_is_not_dumped() -> Completion {
    if let Err(skipped) = release_half_a_gib() {
        return skipped;
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    // It has moved with one page more.
    let sizes_kib = [0, 1].map(|pages| (512 * MIB + pages * page_size()) / 1024);
    let size = |entry: &&str| {
        let kib = entry.split_whitespace().next().unwrap().parse();
        kib.is_ok_and(|kib| sizes_kib.contains(&kib))
    };
    let pending = smaps.split("\nSize:").find(size);
    let flags =
        pending.and_then(|entry| entry.lines().find_map(|line| line.strip_prefix("VmFlags:")));
    let flags = flags.expect("memory still pending: it was freed too early to prove anything");
    assert!(flags.contains(" dd ") && flags.contains(" dc "), "{flags}");
    drain_pending();
    Completion::Completed
}

fn forked_child_does_not_inherit_pending_memory() -> Completion {
    if let Err(skipped) = release_half_a_gib() {
        return skipped;
    }
    assert!(
        drain(Some(Duration::ZERO)).is_err(),
        "freed too early to prove anything"
    );
    let status = fork(|| {
        assert!(status_kib("VmRSS") < 256 * 1024);
        // Nothing is pending here, and no worker would free it.
        drain(Some(Duration::ZERO)).unwrap();
        0
    });
    assert_eq!(status, 0);
    drain_pending();
    Completion::Completed
}

fn forked_child_releases_memory() {
    drop(large());
    let status = fork(|| {
        let mut memory = large();
        fill(memory.range());
        memory.discard(..).unwrap();
        assert!(is_zero(memory.range()));
        let range = memory.range();
        drop(memory);
        assert!(!is_still_mapped(range));
        drain(Some(Duration::from_secs(60))).unwrap();
        0
    });
    assert_eq!(status, 0);
}

fn fork_during_release_inherits_no_pending_memory() {
    drain_pending();
    let before_kib = status_kib("VmRSS");
    std::thread::scope(|scope| {
        let releasing = scope.spawn(|| {
            for _ in 0..40 {
                drop(large());
            }
        });
        while !releasing.is_finished() {
            let status = fork(|| {
                // At most one mapping of 64 MiB that is still owned, and nothing pending.
                let limit_kib = before_kib + 96 * 1024;
                i32::from(status_kib("VmRSS") > limit_kib)
            });
            assert_eq!(status, 0);
        }
    });
    drain_pending();
}

fn hugetlb_memory_is_unmapped_and_discard_is_rejected() -> Completion {
    let Some(_pool) = HugePool::of(4) else {
        return skip("needs 4 free huge pages of 2 MiB (vm.nr_hugepages), or root to ask for them");
    };
    let mut memory = Mapping::memfd(8 * MIB, MemfdPages::Huge2M).map().unwrap();
    memory.populate(.., Access::Write).unwrap();
    let error = memory.discard(..).unwrap_err();
    // Before PROCMAP_QUERY a hugetlb file cannot be told from other files.
    let kind = match Features::get().procmap_query {
        Ok(()) => MemoryKind::HugeTlb,
        Err(_) => MemoryKind::Shared,
    };
    assert!(
        matches!(error, Error::WrongKind { found, .. } if found == kind),
        "{error}"
    );
    let range = memory.range();
    let part = pages(range, 1, 2 * MIB / page_size());
    let error = unsafe { part.munmap() }.unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    memory.munmap().unwrap();
    assert!(!has_vm_flag(range, "ht"));
    Completion::Completed
}

fn discarded_private_file_reads_as_file_again() {
    let file = file(8 * MIB);
    let mut memory = unsafe { Mapping::file(&file) }
        .private()
        .read_write()
        .map()
        .unwrap();
    let original = memory.as_slice().to_vec();
    fill(memory.range());
    memory.discard(page_size()..).unwrap();
    assert!(is_filled(pages(memory.range(), 0, 1)));
    assert!(memory.as_slice()[page_size()..] == original[page_size()..]);
}

fn release_of_over_a_gib_at_any_offset_is_complete() -> Completion {
    drain_pending();
    if let Some(skipped) = skip_without_headroom((1024 + 70) * MIB) {
        return skipped;
    }
    let page_count = (1024 + 70) * MIB / page_size();
    let mut memory = anonymous(page_count);
    let range = memory.range();
    let (first, last) = (pages(range, 0, 5), pages(range, page_count - 3, 3));
    let part = pages(range, 5, page_count - 8);
    fill(first);
    fill(last);
    unsafe { part.populate(Access::Write) }.unwrap();
    let bounds = 5 * page_size()..memory.len() - 3 * page_size();
    memory.discard(bounds).unwrap();
    assert!(is_filled(first) && is_filled(last));
    assert_eq!(count_present(part), 0);
    for at in [0, 12345, part.pages() - 1] {
        fill(pages(part, at, 1));
        assert!(is_filled(pages(part, at, 1)));
    }
    unsafe { part.munmap() }.unwrap();
    assert!(!is_still_mapped(part) && is_filled(first) && is_filled(last));
    drain_pending();
    // A worker's memory may lie in the hole.
    std::mem::forget(memory);
    Completion::Completed
}

fn gib_mapping_is_gib_aligned_without_excess() {
    drain_pending();
    let gib = 1024 * MIB;
    let size_kib = status_kib("VmSize");
    let memory = Mapping::anonymous(gib + 3).map().unwrap();
    if page_size() == 4096 {
        assert_eq!(memory.range().start() % gib, 0);
    }
    // Addresses reserved for the alignment are unmapped.
    let taken_kib = status_kib("VmSize") - size_kib;
    assert_eq!(taken_kib as usize, memory.range().len() / 1024);
}

fn munmapped_shared_memory_stays_in_child() {
    drain_pending();
    let memory = Mapping::shared_anonymous(64 * MIB).map().unwrap();
    let range = memory.range();
    fill(range);
    let flag = Mapping::shared_anonymous(page_size()).map().unwrap();
    let phase = unsafe { AtomicU32::from_ptr(flag.as_ptr().cast()) };
    std::thread::scope(|scope| {
        let (forked, fork_done) = std::sync::mpsc::channel();
        let child = scope.spawn(move || {
            let status = fork(|| {
                phase.store(1, Ordering::SeqCst);
                while phase.load(Ordering::SeqCst) == 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                i32::from(!is_filled(range))
            });
            forked.send(status).unwrap();
        });
        while phase.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        memory.munmap().unwrap();
        drain_pending();
        assert!(!is_still_mapped(range));
        phase.store(2, Ordering::SeqCst);
        assert_eq!(fork_done.recv(), Ok(0));
        child.join().unwrap();
    });
}

fn memfd_is_sealable_when_munmap_returns() {
    let memfd = rustix::fs::memfd_create("sealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memfd, 64 * MIB as u64).unwrap();
    let file = std::fs::File::from(memfd);
    let memory = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
    memory.populate(.., Access::Write).unwrap();
    let seal = || rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::WRITE);
    assert_eq!(seal(), Err(rustix::io::Errno::BUSY));
    memory.munmap().unwrap();
    seal().unwrap();
}

fn unmapped_memfd_leaves_no_descriptor() {
    let open_count = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
        let is_memfd = |target: &std::path::PathBuf| target.starts_with("/memfd:tenure (deleted)");
        targets.filter(is_memfd).count()
    };
    let before = open_count();
    let map = || Mapping::memfd(MIB, MemfdPages::Base).map().unwrap();
    let memory = map();
    assert_eq!(open_count(), before + 1);
    memory.munmap().unwrap();
    assert_eq!(open_count(), before);
    map().munmap_sync().unwrap();
    assert_eq!(open_count(), before);
    drop(map());
    assert_eq!(open_count(), before);
}

fn munmapped_volatile_range_is_unregistered() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd here");
    }
    // The worker is there before the range goes: its stack must not come to lie in it.
    drop(large());
    drain_pending();
    let memory = large();
    let range = memory.range();
    fill(range);
    tenure::volatile::set_offer_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    assert!(has_vm_flag(range, "um"), "not registered");
    unsafe { range.munmap() }.unwrap();
    assert!(!is_still_mapped(range));
    raw_map_over(range);
    // A missing page that was still registered would raise SIGBUS.
    assert!(is_zero(range));
    raw_unmap(range);
    drain_pending();
    Completion::Completed
}

fn munmap_sync_leaves_nothing_pending() {
    drain_pending();
    let before_kib = status_kib("VmRSS");
    for memory in [
        large(),
        Mapping::memfd(8 * MIB, MemfdPages::Base).map().unwrap(),
    ] {
        let range = memory.range();
        tag(range);
        fill(range);
        memory.munmap_sync().unwrap();
        drain(Some(Duration::ZERO)).unwrap();
        assert!(!is_still_mapped(range));
    }
    assert!(status_kib("VmRSS") < before_kib + 4096);
}
