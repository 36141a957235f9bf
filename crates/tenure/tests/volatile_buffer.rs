//! Volatile buffers, alone and in an arena: what may be borrowed and read, and how many
//! mappings they need.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::volatile::{
    PurgeWatch, can_offer, matches_outcome, was_under_pressure, watch_pressure,
};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous};
use tenure::{Error, Features, Outcome, PageRange, VolatileArena, VolatileBuffer, page_size};

tests!(
    slices_of_volatile_buffer_are_rejected,
    mark_within_offer_delay_is_not_offered,
    transitions_within_offer_delay_make_no_syscall,
    read_volatile_into_keeps_buffer_volatile,
    read_past_length_within_last_page_is_out_of_bounds,
    read_of_purged_buffer_is_purged_error,
    purge_all_purges_every_volatile_object,
    new_buffer_is_zeroed_and_page_rounded,
    dropped_volatile_buffer_is_never_offered,
    arena_buffers_are_purged_independently,
    reused_arena_slot_reads_as_zeros,
    full_arena_reports_longest_free_run,
    arena_dropped_before_its_buffer_stays_mapped,
    arena_of_100k_objects_needs_few_mappings,
    forked_arena_is_protected_and_separate,
    arena_with_closed_userfaultfd_is_registered_again,
    failed_purge_still_reports_purged_pages,
    buffer_contract_holds_without_userfaultfd;
    children:
    make_transitions,
    check_contract_without_userfaultfd,
    close_userfaultfd_of_arena,
    purge_without_mappings_for_guards,
);

const NONE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);

fn buffer(page_count: usize) -> VolatileBuffer {
    let buffer = VolatileBuffer::from_mapping(anonymous(page_count)).unwrap();
    fill(buffer.range());
    buffer
}

fn slices_of_volatile_buffer_are_rejected() {
    let watch = PurgeWatch::now();
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let mut buffer = buffer(8);
        assert!(!buffer.is_volatile() && buffer.as_slice().is_ok());
        buffer.mark_volatile();
        assert!(buffer.is_volatile());
        for error in [
            buffer.as_slice().map(drop).unwrap_err(),
            buffer.as_mut_slice().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Volatile { .. }), "{error}");
            assert_eq!(error.errno(), libc::EBUSY);
        }
        buffer.mark_volatile();
        let outcome = buffer.mark_nonvolatile().unwrap();
        watch.assert_purged(buffer.range(), &outcome, &[]);
        assert_eq!(buffer.mark_nonvolatile().unwrap(), Outcome::Intact);
        buffer.as_mut_slice().unwrap()[0] = 1;
    }
}

fn mark_within_offer_delay_is_not_offered() {
    tenure::volatile::set_offer_delay(LONG);
    let mut buffer = buffer(64);
    for _ in 0..1000 {
        buffer.mark_volatile();
        assert!(!has_vm_flag(buffer.range(), "um"));
        page_out(buffer.range());
        assert_eq!(buffer.mark_nonvolatile().unwrap(), Outcome::Intact);
        assert!(is_filled(buffer.range()));
    }
}

fn make_transitions() {
    tenure::volatile::set_offer_delay(LONG);
    let (mut alone, mut kept) = (buffer(4), buffer(4));
    let arena = VolatileArena::new(8 * page_size()).unwrap();
    let mut in_arena = arena.buffer(4 * page_size()).unwrap();
    let memory = anonymous(4);
    let plain = memory.range();
    // From here on the offer thread runs, with memory to wait for, and the plain range is
    // validated.
    kept.mark_volatile();
    unsafe { plain.mark_volatile() }.unwrap();
    let _ = unsafe { plain.mark_nonvolatile() }.unwrap();
    // The process may read the clock by system call, where it cannot be read without.
    let always = [libc::SYS_clock_gettime, libc::SYS_exit_group];
    let install = [libc::SYS_prctl, libc::SYS_seccomp];
    // The offer thread may hold the engine's lock.
    allow_only(&[&always[..], &install, &[libc::SYS_futex]].concat());
    let mut all_intact = true;
    for _ in 0..10_000 {
        unsafe { plain.mark_volatile() }.unwrap();
        all_intact &= unsafe { plain.mark_nonvolatile() }.unwrap() == Outcome::Intact;
    }
    allow_only(&always);
    for _ in 0..10_000 {
        for buffer in [&mut alone, &mut in_arena] {
            buffer.mark_volatile();
            all_intact &= buffer.mark_nonvolatile().unwrap() == Outcome::Intact;
        }
    }
    unsafe { libc::_exit(i32::from(!all_intact)) };
}

fn transitions_within_offer_delay_make_no_syscall() -> Completion {
    watch_pressure();
    for _ in 0..3 {
        let output = in_child_with("TENURE_WITHOUT", "", "make_transitions");
        // Under memory pressure everything is offered immediately.
        if output.status.success() || !was_under_pressure() {
            assert_ended_well("make_transitions", &output);
            return Completion::Completed;
        }
    }
    skip("memory is short")
}

fn read_volatile_into_keeps_buffer_volatile() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let mut buffer = buffer(8);
        let contents = buffer.as_slice().unwrap().to_vec();
        let from = page_size() - 5;
        let mut copy = vec![0; 3 * page_size()];
        for volatile in [false, true] {
            if volatile {
                buffer.mark_volatile();
            }
            copy.fill(0);
            buffer.read_volatile_into(from, &mut copy).unwrap();
            assert_eq!(copy, contents[from..from + copy.len()]);
            assert_eq!(buffer.is_volatile(), volatile);
            let past = buffer.read_volatile_into(contents.len() - 1, &mut [0; 2]);
            assert!(matches!(past, Err(Error::OutOfBounds { .. })));
            let far = buffer.read_volatile_into(usize::MAX, &mut [0; 2]);
            assert!(matches!(far, Err(Error::OutOfBounds { .. })));
        }
    }
}

fn read_past_length_within_last_page_is_out_of_bounds() {
    let len = page_size() + 1;
    let arena = VolatileArena::new(1 << 20).unwrap();
    for mut buffer in [VolatileBuffer::new(len), arena.buffer(len)].map(Result::unwrap) {
        for volatile in [false, true] {
            if volatile {
                buffer.mark_volatile();
            }
            buffer.read_volatile_into(len - 1, &mut [0; 1]).unwrap();
            let past = buffer.read_volatile_into(len - 1, &mut [0; 2]);
            assert!(matches!(past, Err(Error::OutOfBounds { .. })));
        }
    }
}

fn read_of_purged_buffer_is_purged_error() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let mut buffer = buffer(8);
        buffer.purge().unwrap();
        assert!(is_filled(buffer.range()), "a nonvolatile buffer was purged");
        buffer.mark_volatile();
        buffer.purge().unwrap();
        let error = buffer.read_volatile_into(0, &mut [0; 1]).unwrap_err();
        assert!(matches!(error, Error::Purged { .. }), "{error}");
        assert_eq!(error.errno(), libc::EFAULT);
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![buffer.range()]));
        assert!(is_zero(buffer.range()));
        buffer.as_mut_slice().unwrap().fill(1);
    }
}

fn purge_all_purges_every_volatile_object() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let arena = VolatileArena::new(8 * page_size()).unwrap();
        let mut buffers = [buffer(8), buffer(8), arena.buffer(4 * page_size()).unwrap()];
        fill(buffers[2].range());
        let plain = anonymous(16);
        fill(plain.range());
        buffers[1].mark_volatile();
        buffers[2].mark_volatile();
        unsafe { pages(plain.range(), 4, 4).mark_volatile() }.unwrap();
        unsafe { pages(plain.range(), 10, 4).mark_volatile() }.unwrap();
        // Purging a part leaves the rest to purge_all.
        unsafe { pages(plain.range(), 4, 1).purge() }.unwrap();
        let requested_bytes = || tenure::stats().purged_on_request_bytes;
        let before = requested_bytes();
        tenure::volatile::purge_all().unwrap();
        // (Except for what the kernel has purged, which it may at any time.)
        let (requested, max) = (requested_bytes() - before, (19 * page_size()) as u64);
        assert!(
            requested <= max && requested > max / 2,
            "{requested} of {max}"
        );
        assert!(
            is_filled(buffers[0].range()),
            "a nonvolatile buffer was purged"
        );
        for buffer in &mut buffers[1..] {
            assert!(buffer.read_volatile_into(0, &mut [0]).is_err());
            let outcome = buffer.mark_nonvolatile().unwrap();
            assert_eq!(outcome, Outcome::Purged(vec![buffer.range()]));
        }
        let purged = [pages(plain.range(), 4, 4), pages(plain.range(), 10, 4)];
        let outcome = unsafe { plain.range().mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(purged.to_vec()));
        assert!(matches_outcome(plain.range(), &outcome));
    }
}

fn new_buffer_is_zeroed_and_page_rounded() {
    let buffer = VolatileBuffer::new(page_size() + 1).unwrap();
    assert_eq!((buffer.len(), buffer.range().pages()), (page_size() + 1, 2));
    assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 0));
    assert!(matches!(VolatileBuffer::new(0), Err(Error::EmptyMapping)));
    let arena = VolatileArena::new(1 << 20).unwrap();
    let buffer = arena.buffer(page_size() + 1).unwrap();
    assert_eq!((buffer.len(), buffer.range().pages()), (page_size() + 1, 2));
    assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 0));
    assert!(matches!(arena.buffer(0), Err(Error::EmptyMapping)));
    assert!(matches!(VolatileArena::new(0), Err(Error::EmptyMapping)));
    assert!(matches!(
        VolatileArena::new(usize::MAX),
        Err(Error::Overflow { .. })
    ));
}

/// Maps memory there, unless another thread has mapped something concurrently.
fn map_if_free(range: PageRange) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    unsafe { mmap_anonymous(range.as_ptr().cast(), range.len(), access, flags) }.is_ok()
}

fn dropped_volatile_buffer_is_never_offered() {
    tenure::volatile::set_offer_delay(Duration::from_millis(1));
    // Many are due to be offered when they are dropped.
    for _ in 0..2000 {
        let mut buffer = buffer(2);
        let range = buffer.range();
        buffer.mark_volatile();
        drop(buffer);
        if !map_if_free(range) {
            continue;
        }
        fill(range);
        std::thread::sleep(Duration::from_micros(50));
        page_out(range);
        assert!(is_filled(range), "memory of another mapping was offered");
        raw_unmap(range);
    }
}

fn arena_buffers_are_purged_independently() {
    let watch = PurgeWatch::now();
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let arena = VolatileArena::new(64 * page_size()).unwrap();
        let mut all: Vec<_> = (0..16)
            .map(|_| arena.buffer(4 * page_size()).unwrap())
            .collect();
        for buffer in &mut all {
            fill(buffer.range());
        }
        for buffer in all.iter_mut().step_by(2) {
            buffer.mark_volatile();
        }
        for buffer in all.iter_mut().step_by(4) {
            buffer.purge().unwrap();
        }
        for (index, buffer) in all.iter_mut().enumerate() {
            assert_eq!(buffer.is_volatile(), index % 2 == 0);
            let outcome = buffer.mark_nonvolatile().unwrap();
            let range = buffer.range();
            let purged = if index % 4 == 0 { &[range][..] } else { &[] };
            watch.assert_purged(range, &outcome, purged);
        }
    }
}

fn reused_arena_slot_reads_as_zeros() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(8 * page_size()).unwrap();
    for round in 0..20 {
        let mut buffer = arena.buffer(arena.range().len()).unwrap();
        assert!(is_zero(buffer.range()), "{round}");
        fill(buffer.range());
        if round % 2 == 0 {
            buffer.mark_volatile();
        }
        if round % 4 == 0 {
            buffer.purge().unwrap();
        }
    }
}

fn full_arena_reports_longest_free_run() {
    let arena = VolatileArena::new(8 * page_size()).unwrap();
    let first = arena.buffer(3 * page_size()).unwrap();
    let second = arena.buffer(3 * page_size()).unwrap();
    drop(first);
    let error = arena.buffer(4 * page_size()).unwrap_err();
    assert!(
        matches!(error, Error::ArenaFull { longest_bytes, .. } if longest_bytes == 3 * page_size()),
        "{error}"
    );
    assert_eq!(error.errno(), libc::ENOMEM);
    assert!(arena.buffer(usize::MAX).is_err());
    drop(second);
    arena.buffer(8 * page_size()).unwrap();
}

fn arena_dropped_before_its_buffer_stays_mapped() {
    let arena = VolatileArena::new(1 << 20).unwrap();
    let whole = arena.range();
    let mut buffer = arena.buffer(page_size()).unwrap();
    drop(arena);
    buffer.as_mut_slice().unwrap().fill(7);
    assert!(!vm_flags(whole).is_empty());
    assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 7));
}

fn mapping_count() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn arena_of_100k_objects_needs_few_mappings() -> Completion {
    if !can_offer() && Features::get().madv_guard.is_err() {
        return skip(
            "each purged page is a mapping without userfaultfd and MADV_GUARD (Linux 6.13)",
        );
    }
    let watch = PurgeWatch::now();
    tenure::volatile::set_offer_delay(NONE);
    const OBJECTS: usize = 100_000;
    let before = mapping_count();
    let arena = VolatileArena::new(OBJECTS * page_size()).unwrap();
    let mut objects: Vec<_> = (0..OBJECTS)
        .map(|_| arena.buffer(page_size()).unwrap())
        .collect();
    // No object is all zeros: some kernels cannot tell such a page from the zero page, and
    // a page that reads as before is not purged.
    let number = |index: usize| (index + 1).to_ne_bytes();
    for (index, object) in objects.iter_mut().enumerate() {
        object.as_mut_slice().unwrap()[..8].copy_from_slice(&number(index));
    }
    for object in objects.iter_mut().step_by(2) {
        object.mark_volatile();
    }
    for object in objects.iter_mut().step_by(20) {
        object.purge().unwrap();
    }
    let added = || mapping_count() - before;
    assert!(added() < 1000, "{} additional mappings", added());
    let mut purged = 0;
    for (index, object) in objects.iter_mut().enumerate() {
        let is_purged = object.mark_nonvolatile().unwrap() != Outcome::Intact;
        assert!(is_purged || index % 20 != 0, "{index}");
        assert!(!is_purged || index % 2 == 0, "{index}");
        purged += usize::from(is_purged);
        let expected = if is_purged { [0; 8] } else { number(index) };
        assert_eq!(object.as_slice().unwrap()[..8], expected, "{index}");
    }
    // Also after half of them have been offered.
    assert!(added() < 1000, "{} additional mappings", added());
    assert!(purged == OBJECTS / 20 || watch.explains(purged), "{purged}");
    Completion::Completed
}

fn forked_arena_is_protected_and_separate() {
    let watch = PurgeWatch::now();
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(64 * page_size()).unwrap();
    let mut used = arena.buffer(4 * page_size()).unwrap();
    let mut cached = arena.buffer(4 * page_size()).unwrap();
    fill(used.range());
    fill(cached.range());
    cached.mark_volatile();
    let status = fork(|| {
        assert!(is_filled(used.range()));
        cached.purge().unwrap();
        assert!(cached.read_volatile_into(0, &mut [0]).is_err());
        let outcome = cached.mark_nonvolatile().unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![cached.range()]));
        // New buffers in the child read as zeros and are protected.
        let mut new = arena.buffer(4 * page_size()).unwrap();
        assert!(is_zero(new.range()));
        fill(new.range());
        new.mark_volatile();
        new.purge().unwrap();
        assert!(new.mark_nonvolatile().unwrap() != Outcome::Intact);
        // The child registers the arena as a whole.
        let before = mapping_count();
        let mut more = [(); 40].map(|()| arena.buffer(page_size()).unwrap());
        for buffer in more.iter_mut().step_by(2) {
            fill(buffer.range());
            buffer.mark_volatile();
        }
        assert!(mapping_count() < before + 10);
        used.as_mut_slice().unwrap().fill(1);
        0
    });
    assert_eq!(status, 0);
    let outcome = cached.mark_nonvolatile().unwrap();
    watch.assert_purged(cached.range(), &outcome, &[]);
    assert!(is_filled(used.range()));
    used.mark_volatile();
}

fn close_userfaultfd_of_arena() {
    without_files_thread();
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(64 * page_size()).unwrap();
    let mut pair = [0, 1].map(|_| arena.buffer(4 * page_size()).unwrap());
    assert_eq!(pair[0].range().end(), pair[1].range().start());
    // The userfaultfd is opened by the first offer.
    fill(pair[0].range());
    pair[0].mark_volatile();
    let outcome = pair[0].mark_nonvolatile().unwrap();
    assert!(matches_outcome(pair[0].range(), &outcome));
    close_userfaultfd();
    // Nothing has been offered, so nothing is purged.
    for buffer in &mut pair {
        fill(buffer.range());
        buffer.mark_volatile();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(buffer.range(), &outcome));
    }
    // Both are offered together, and only the first has been registered again.
    pair[0].mark_volatile();
    tenure::volatile::set_offer_delay(LONG);
    pair.iter_mut().for_each(VolatileBuffer::mark_volatile);
    tenure::volatile::set_offer_delay(NONE);
    for buffer in &mut pair {
        fill(buffer.range());
        buffer.mark_volatile();
        page_out(buffer.range());
        assert!(has_vm_flag(buffer.range(), "um"), "not registered");
        assert_eq!(tenure::stats().unprotected_bytes, 0);
        let _ = buffer.mark_nonvolatile().unwrap();
    }
    // A child registers its copy of the arena, too.
    let mut new = arena.buffer(4 * page_size()).unwrap();
    let status = fork(|| {
        assert!(is_zero(new.range()));
        new.as_mut_slice().unwrap().fill(1);
        new.mark_volatile();
        new.purge().unwrap();
        assert!(new.read_volatile_into(0, &mut [0]).is_err());
        i32::from(new.mark_nonvolatile().unwrap() == Outcome::Intact)
    });
    assert_eq!(status, 0);
}

fn arena_with_closed_userfaultfd_is_registered_again() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd and MADV_POPULATE_WRITE");
    }
    in_child_ok("close_userfaultfd_of_arena");
    Completion::Completed
}

/// Repeats the tests where nothing can be offered, and purging installs guards.
fn check_contract_without_userfaultfd() {
    slices_of_volatile_buffer_are_rejected();
    mark_within_offer_delay_is_not_offered();
    read_volatile_into_keeps_buffer_volatile();
    read_of_purged_buffer_is_purged_error();
    purge_all_purges_every_volatile_object();
    new_buffer_is_zeroed_and_page_rounded();
    arena_buffers_are_purged_independently();
    reused_arena_slot_reads_as_zeros();
    full_arena_reports_longest_free_run();
    arena_dropped_before_its_buffer_stays_mapped();
    forked_arena_is_protected_and_separate();
    let mut buffer = buffer(4);
    buffer.mark_volatile();
    assert!(!has_vm_flag(buffer.range(), "um"));
    page_out(buffer.range());
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Intact,
        "purged without having been offered"
    );
}

/// Without guard regions each guard is a mapping of its own, and the number of mappings is
/// limited.
fn purge_without_mappings_for_guards() {
    let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let max: usize = max.trim().parse().unwrap();
    let memory = anonymous(256);
    let range = memory.range();
    for page in (0..256).step_by(2) {
        fill(pages(range, page, 1));
    }
    tenure::volatile::set_offer_delay(LONG);
    unsafe { range.mark_volatile() }.unwrap();
    // Mappings remain for some of the guards.
    let others = anonymous(max + 1000);
    let mut page = 0;
    while mapping_count() < max - 100 {
        for _ in 0..(max - 100 - mapping_count()).div_ceil(2) {
            raw_protect(pages(others.range(), page, 1), MprotectFlags::READ);
            page += 2;
        }
    }
    let error = unsafe { range.purge() }.unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    drop(others);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    let Outcome::Purged(runs) = outcome else {
        panic!("a purge without a report")
    };
    for page in 0..256 {
        let page = pages(range, page, 1);
        let is_purged = runs.iter().any(|run| run.contains(page));
        assert!(is_zero(page) || !is_purged && is_filled(page));
        let was_filled = ((page.start() - range.start()) / page_size()).is_multiple_of(2);
        assert!(
            is_purged || is_filled(page) == was_filled,
            "a purge without a report"
        );
    }
}

fn failed_purge_still_reports_purged_pages() {
    in_child_without(
        "userfaultfd,madv_guard",
        "purge_without_mappings_for_guards",
    );
}

fn buffer_contract_holds_without_userfaultfd() {
    for features in [
        "userfaultfd",
        "userfaultfd,madv_guard",
        "userfaultfd,pagemap_scan",
        // Memory that cannot be repopulated is not offered.
        "madv_populate",
    ] {
        in_child_without(features, "check_contract_without_userfaultfd");
    }
}
