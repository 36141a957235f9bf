//! release: what is gone, what stays, and what a child sees of it.

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
    ReleaseLimits, drain, page_size,
};

tests!(
    munmap_unmaps_and_frees,
    dropping_unmaps,
    the_middle_of_a_mapping,
    several_mappings_and_holes,
    munmap_of_other_kinds,
    a_locked_range_is_uncharged_at_once,
    discard_reads_as_zeros,
    discard_leaves_neighbours_alone,
    discard_keeps_advice_and_stays_writable,
    discard_over_several_mappings,
    discard_refuses_other_kinds,
    discard_refuses_holes,
    discard_refuses_locked_memory,
    nothing_is_nothing,
    drain_tells_what_is_pending,
    what_is_pending_is_not_dumped,
    a_child_does_not_inherit_what_is_pending,
    a_child_can_release_too,
    fork_while_others_release,
    hugetlb_takes_the_plain_way,
    discard_of_private_files_reads_as_the_file_again,
    more_than_a_gib_from_anywhere,
    large_mappings_lie_on_a_gib,
    shared_memory_stays_with_a_child,
    a_memfd_can_be_sealed_when_munmap_returns,
    no_way_of_unmapping_leaves_a_descriptor,
    a_registered_range_goes_like_others,
    release_now_leaves_nothing_pending,
    a_hole_that_tenure_itself_has_used;
    children:
    munmap_of_little_first,
    munmap_of_much_first,
);

const MIB: usize = 1 << 20;

fn munmap_unmaps_and_frees() {
    settle();
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
        assert!(!is_still_there(range), "{page_count} pages");
    }
    settle();
    assert!(status_kib("VmRSS") < before_kib + 4096);
    // The worker's stack, and the addresses its allocator sets aside, are all
    // that has come.
    assert!(status_kib("VmSize") < before_size_kib + 80 * 1024);
    ReleaseLimits::default().set();
}

/// The kernel puts the page of counters where there is room for a page: into the hole.
fn munmap_first(page_count: usize) {
    let map = |page_count: usize| {
        let (len, nowhere) = (page_count * page_size(), std::ptr::null_mut());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = unsafe { mmap_anonymous(nowhere, len, access, MapFlags::PRIVATE) };
        PageRange::new(start.unwrap().addr(), len).unwrap()
    };
    let whole = map(page_count);
    mark(whole);
    // Every other gap above it is used up.
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
        assert!(!is_still_there(pages(whole, page, 1)), "{page}");
    }
}

fn munmap_of_little_first() {
    munmap_first(16);
}

fn munmap_of_much_first() {
    munmap_first(16 * MIB / page_size());
}

fn a_hole_that_tenure_itself_has_used() {
    in_child_ok("munmap_of_little_first");
    in_child_ok("munmap_of_much_first");
}

fn dropping_unmaps() {
    let memory = large();
    let range = memory.range();
    drop(memory);
    assert!(!is_still_there(range));
    assert!(!is_still_there(pages(range, range.pages() - 1, 1)));
}

fn the_middle_of_a_mapping() {
    let memory = large();
    let range = memory.range();
    let middle = pages(range, 100, 8 * MIB / page_size());
    let behind = PageRange::new(middle.end(), range.end() - middle.end()).unwrap();
    let before = pages(range, 0, 100);
    fill(before);
    fill(behind);
    unsafe { middle.munmap() }.unwrap();
    assert!(!is_still_there(middle));
    assert!(is_filled(before) && is_filled(behind));
}

fn several_mappings_and_holes() {
    let memory = large();
    let range = memory.range();
    let dumped_not = pages(range, 2000, 3000);
    unsafe {
        rustix::mm::madvise(
            dumped_not.as_ptr().cast(),
            dumped_not.len(),
            rustix::mm::Advice::LinuxDontDump,
        )
    }
    .unwrap();
    raw_unmap(pages(range, 7000, 5));
    memory.munmap().unwrap();
    for page in [0, 2000, 5000, 6999, 7005, range.pages() - 1] {
        assert!(!is_still_there(pages(range, page, 1)), "page {page}");
    }
    // Holes only: legal for munmap.
    unsafe { range.munmap() }.unwrap();
}

fn munmap_of_other_kinds() {
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
        mark(range);
        assert!(is_still_there(range));
        memory.munmap().unwrap();
        assert!(!is_still_there(range));
    }
}

fn a_locked_range_is_uncharged_at_once() {
    let memory = anonymous(4 * MIB / page_size());
    let before = status_kib("VmLck");
    memory.lock(.., LockMode::Now).unwrap();
    memory.munmap().unwrap();
    assert_eq!(status_kib("VmLck"), before);
}

fn discard_reads_as_zeros() {
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

fn discard_leaves_neighbours_alone() {
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

fn discard_keeps_advice_and_stays_writable() {
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

fn discard_over_several_mappings() {
    let mut memory = large();
    let range = memory.range();
    fill(range);
    let part = pages(range, 2000, 3000);
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

fn discard_refuses_other_kinds() {
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

fn discard_refuses_holes() {
    let mut memory = large();
    fill(memory.range());
    let hole = pages(memory.range(), 16000, 1);
    raw_unmap(hole);
    let error = memory.discard(..).unwrap_err();
    assert!(
        matches!(error, Error::Hole { hole: at, .. } if at == hole),
        "{error}"
    );
    assert!(is_filled(pages(memory.range(), 0, 16000)));
}

fn discard_refuses_locked_memory() {
    let mut memory = large();
    fill(memory.range());
    memory
        .lock(memory.len() - page_size().., LockMode::OnFault)
        .unwrap();
    let error = memory.discard(..).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(is_filled(memory.range()));
}

fn nothing_is_nothing() {
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.munmap() }.unwrap();
    unsafe { nowhere.discard() }.unwrap();
    let mut memory = anonymous(1);
    fill(memory.range());
    memory.discard(0..0).unwrap();
    assert!(is_filled(memory.range()));
}

/// Has so much pending; says how much, in bytes.
fn give_up_half_a_gib() -> Result<usize, Completion> {
    settle();
    if let Some(skipped) = too_little_room(512 * MIB) {
        return Err(skipped);
    }
    let memory = anonymous(512 * MIB / page_size());
    memory.populate(.., Access::Write).unwrap();
    let len = memory.len();
    memory.munmap().unwrap();
    Ok(len)
}

fn drain_tells_what_is_pending() -> Completion {
    let len = match give_up_half_a_gib() {
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

fn what_is_pending_is_not_dumped() -> Completion {
    if let Err(skipped) = give_up_half_a_gib() {
        return skipped;
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let size = |entry: &&str| entry.split_whitespace().next() == Some("524288");
    let pending = smaps.split("\nSize:").find(size);
    let flags =
        pending.and_then(|entry| entry.lines().find_map(|line| line.strip_prefix("VmFlags:")));
    let flags = flags.expect("freed too early for the test to show anything");
    assert!(flags.contains(" dd ") && flags.contains(" dc "), "{flags}");
    settle();
    Completion::Completed
}

fn a_child_does_not_inherit_what_is_pending() -> Completion {
    if let Err(skipped) = give_up_half_a_gib() {
        return skipped;
    }
    assert!(
        drain(Some(Duration::ZERO)).is_err(),
        "freed too early for the test to show anything"
    );
    let status = fork(|| {
        assert!(status_kib("VmRSS") < 256 * 1024);
        // Nothing is pending here, and nobody would free it.
        drain(Some(Duration::ZERO)).unwrap();
        0
    });
    assert_eq!(status, 0);
    settle();
    Completion::Completed
}

fn a_child_can_release_too() {
    drop(large());
    let status = fork(|| {
        let mut memory = large();
        fill(memory.range());
        memory.discard(..).unwrap();
        assert!(is_zero(memory.range()));
        let range = memory.range();
        drop(memory);
        assert!(!is_still_there(range));
        drain(Some(Duration::from_secs(60))).unwrap();
        0
    });
    assert_eq!(status, 0);
}

fn fork_while_others_release() {
    settle();
    std::thread::scope(|scope| {
        let releasing = scope.spawn(|| {
            for _ in 0..40 {
                drop(large());
            }
        });
        while !releasing.is_finished() {
            let status = fork(|| {
                // One mapping that is still owned at most, nothing in transit.
                let limit_kib = 2 * 65 * 1024;
                i32::from(status_kib("VmRSS") > limit_kib)
            });
            assert_eq!(status, 0);
        }
    });
    settle();
}

fn hugetlb_takes_the_plain_way() -> Completion {
    let Some(_pool) = HugePool::of(4) else {
        return skip("needs 4 free huge pages of 2 MiB (vm.nr_hugepages), or root to ask for them");
    };
    let mut memory = Mapping::memfd(8 * MIB, MemfdPages::Huge2M).map().unwrap();
    memory.populate(.., Access::Write).unwrap();
    let error = memory.discard(..).unwrap_err();
    // Before PROCMAP_QUERY a file of huge pages is a file like others.
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

fn discard_of_private_files_reads_as_the_file_again() {
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

fn more_than_a_gib_from_anywhere() -> Completion {
    settle();
    if let Some(skipped) = too_little_room((1024 + 70) * MIB) {
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
    assert!(!is_still_there(part) && is_filled(first) && is_filled(last));
    settle();
    Completion::Completed
}

fn large_mappings_lie_on_a_gib() {
    settle();
    let gib = 1024 * MIB;
    let size_kib = status_kib("VmSize");
    let memory = Mapping::anonymous(gib + 3).map().unwrap();
    if page_size() == 4096 {
        assert_eq!(memory.range().start() % gib, 0);
    }
    // What was reserved around it is given back.
    let taken_kib = status_kib("VmSize") - size_kib;
    assert_eq!(taken_kib as usize, memory.range().len() / 1024);
}

fn shared_memory_stays_with_a_child() {
    settle();
    let memory = Mapping::shared_anonymous(64 * MIB).map().unwrap();
    let range = memory.range();
    fill(range);
    let flag = Mapping::shared_anonymous(page_size()).map().unwrap();
    let gone = unsafe { AtomicU32::from_ptr(flag.as_ptr().cast()) };
    std::thread::scope(|scope| {
        let (forked, fork_done) = std::sync::mpsc::channel();
        let child = scope.spawn(move || {
            let status = fork(|| {
                gone.store(1, Ordering::SeqCst);
                while gone.load(Ordering::SeqCst) == 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                i32::from(!is_filled(range))
            });
            forked.send(status).unwrap();
        });
        while gone.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        memory.munmap().unwrap();
        settle();
        assert!(!is_still_there(range));
        gone.store(2, Ordering::SeqCst);
        assert_eq!(fork_done.recv(), Ok(0));
        child.join().unwrap();
    });
}

fn a_memfd_can_be_sealed_when_munmap_returns() {
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

fn no_way_of_unmapping_leaves_a_descriptor() {
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
    map().release_now().unwrap();
    assert_eq!(open_count(), before);
    drop(map());
    assert_eq!(open_count(), before);
}

fn a_registered_range_goes_like_others() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd here");
    }
    let memory = large();
    let range = memory.range();
    fill(range);
    tenure::set_hand_over_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    assert!(has_vm_flag(range, "um"), "not registered");
    unsafe { range.munmap() }.unwrap();
    assert!(!is_still_there(range));
    raw_map_over(range);
    // Registered still, a missing page would be SIGBUS.
    assert!(is_zero(range));
    raw_unmap(range);
    settle();
    Completion::Completed
}

fn release_now_leaves_nothing_pending() {
    settle();
    let before_kib = status_kib("VmRSS");
    for memory in [
        large(),
        Mapping::memfd(8 * MIB, MemfdPages::Base).map().unwrap(),
    ] {
        let range = memory.range();
        mark(range);
        fill(range);
        memory.release_now().unwrap();
        drain(Some(Duration::ZERO)).unwrap();
        assert!(!is_still_there(range));
    }
    assert!(status_kib("VmRSS") < before_kib + 4096);
}
