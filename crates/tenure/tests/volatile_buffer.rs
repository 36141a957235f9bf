//! Volatile buffers, alone and in an arena: what may be borrowed and read, and
//! what they cost the kernel.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::volatile::{Watch, is_as_told, memory_was_short, watch_pressure};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous};
use tenure::{Error, Outcome, PageRange, VolatileArena, VolatileBuffer, page_size};

tests!(
    bytes_are_lent_only_while_nonvolatile,
    within_the_delay_the_kernel_does_not_know,
    a_transition_makes_no_system_call,
    reading_without_unmarking,
    what_is_purged_cannot_be_read,
    all_that_is_volatile_is_purged_at_once,
    a_new_buffer_is_zeros_and_whole_pages,
    dropping_a_marked_buffer,
    buffers_of_an_arena_are_apart,
    an_arena_gives_places_again_as_zeros,
    a_full_arena_says_so,
    buffers_keep_their_arena_alive,
    a_hundred_thousand_objects_in_few_mappings,
    an_arena_after_fork,
    an_arena_whose_descriptor_was_closed,
    a_purge_that_stops_half_way_forgets_no_loss,
    everything_without_userfaultfd;
    children:
    make_transitions,
    without_userfaultfd,
    close_the_descriptor_of_an_arena,
    purge_with_no_room_for_bars,
);

const NONE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);

fn buffer(page_count: usize) -> VolatileBuffer {
    let buffer = VolatileBuffer::from_mapping(anonymous(page_count)).unwrap();
    fill(buffer.range());
    buffer
}

fn bytes_are_lent_only_while_nonvolatile() {
    let watch = Watch::now();
    for delay in [NONE, LONG] {
        tenure::set_hand_over_delay(delay);
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
        watch.assert_lost(buffer.range(), &outcome, &[]);
        assert_eq!(buffer.mark_nonvolatile().unwrap(), Outcome::Intact);
        buffer.as_mut_slice().unwrap()[0] = 1;
    }
}

fn within_the_delay_the_kernel_does_not_know() {
    tenure::set_hand_over_delay(LONG);
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
    tenure::set_hand_over_delay(LONG);
    let (mut alone, mut kept) = (buffer(4), buffer(4));
    let arena = VolatileArena::new(8 * page_size()).unwrap();
    let mut in_arena = arena.buffer(4 * page_size()).unwrap();
    let memory = anonymous(4);
    let plain = memory.range();
    // From here on the keeper is there, with something to wait for, and the plain
    // range is known.
    kept.mark_volatile();
    unsafe { plain.mark_volatile() }.unwrap();
    let _ = unsafe { plain.mark_nonvolatile() }.unwrap();
    // Where the clock is not to be read without the kernel it is asked.
    let always = [libc::SYS_clock_gettime, libc::SYS_exit_group];
    let install = [libc::SYS_prctl, libc::SYS_seccomp];
    // The engine may be in the keeper's hands.
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

fn a_transition_makes_no_system_call() -> Completion {
    watch_pressure();
    for _ in 0..3 {
        let output = in_child_with("TENURE_WITHOUT", "", "make_transitions");
        // When memory is short all is offered at once.
        if output.status.success() || !memory_was_short() {
            assert_ended_well("make_transitions", &output);
            return Completion::Completed;
        }
    }
    skip("memory is short")
}

fn reading_without_unmarking() {
    for delay in [NONE, LONG] {
        tenure::set_hand_over_delay(delay);
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

fn what_is_purged_cannot_be_read() {
    for delay in [NONE, LONG] {
        tenure::set_hand_over_delay(delay);
        let mut buffer = buffer(8);
        buffer.purge().unwrap();
        assert!(is_filled(buffer.range()), "it was not volatile");
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

fn all_that_is_volatile_is_purged_at_once() {
    for delay in [NONE, LONG] {
        tenure::set_hand_over_delay(delay);
        let arena = VolatileArena::new(8 * page_size()).unwrap();
        let mut buffers = [buffer(8), buffer(8), arena.buffer(4 * page_size()).unwrap()];
        fill(buffers[2].range());
        let plain = anonymous(16);
        fill(plain.range());
        buffers[1].mark_volatile();
        buffers[2].mark_volatile();
        unsafe { pages(plain.range(), 4, 4).mark_volatile() }.unwrap();
        unsafe { pages(plain.range(), 10, 4).mark_volatile() }.unwrap();
        // What has lost a part loses the rest.
        unsafe { pages(plain.range(), 4, 1).purge() }.unwrap();
        let asked_bytes = || tenure::stats().purged_on_request_bytes;
        let before = asked_bytes();
        tenure::purge_all().unwrap();
        // (But for what the kernel has taken, which it may at any time.)
        let (asked, most) = (asked_bytes() - before, (19 * page_size()) as u64);
        assert!(asked <= most && asked > most / 2, "{asked} of {most}");
        assert!(is_filled(buffers[0].range()), "it was not volatile");
        for buffer in &mut buffers[1..] {
            assert!(buffer.read_volatile_into(0, &mut [0]).is_err());
            let outcome = buffer.mark_nonvolatile().unwrap();
            assert_eq!(outcome, Outcome::Purged(vec![buffer.range()]));
        }
        let lost = [pages(plain.range(), 4, 4), pages(plain.range(), 10, 4)];
        let outcome = unsafe { plain.range().mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(lost.to_vec()));
        assert!(is_as_told(plain.range(), &outcome));
    }
}

fn a_new_buffer_is_zeros_and_whole_pages() {
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

/// Maps memory there, unless another thread has mapped something meanwhile.
fn map_if_free(range: PageRange) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    unsafe { mmap_anonymous(range.as_ptr().cast(), range.len(), access, flags) }.is_ok()
}

fn dropping_a_marked_buffer() {
    tenure::set_hand_over_delay(Duration::from_millis(1));
    // Many are on their way to the kernel when they are dropped.
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
        assert!(is_filled(range), "offered what is somebody else's by now");
        raw_unmap(range);
    }
}

fn buffers_of_an_arena_are_apart() {
    let watch = Watch::now();
    for delay in [NONE, LONG] {
        tenure::set_hand_over_delay(delay);
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
            let lost = if index % 4 == 0 { &[range][..] } else { &[] };
            watch.assert_lost(range, &outcome, lost);
        }
    }
}

fn an_arena_gives_places_again_as_zeros() {
    tenure::set_hand_over_delay(NONE);
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

fn a_full_arena_says_so() {
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

fn buffers_keep_their_arena_alive() {
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

fn a_hundred_thousand_objects_in_few_mappings() {
    let watch = Watch::now();
    tenure::set_hand_over_delay(NONE);
    const OBJECTS: usize = 100_000;
    let before = mapping_count();
    let arena = VolatileArena::new(OBJECTS * page_size()).unwrap();
    let mut objects: Vec<_> = (0..OBJECTS)
        .map(|_| arena.buffer(page_size()).unwrap())
        .collect();
    // None is all zeros: some kernels do not tell that from the page of zeros, and
    // what reads as before is not lost.
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
    assert!(added() < 1000, "{} mappings more", added());
    let mut lost = 0;
    for (index, object) in objects.iter_mut().enumerate() {
        let is_lost = object.mark_nonvolatile().unwrap() != Outcome::Intact;
        assert!(is_lost || index % 20 != 0, "{index}");
        assert!(!is_lost || index % 2 == 0, "{index}");
        lost += usize::from(is_lost);
        let expected = if is_lost { [0; 8] } else { number(index) };
        assert_eq!(object.as_slice().unwrap()[..8], expected, "{index}");
    }
    // Also when half of them have been in the kernel's hands.
    assert!(added() < 1000, "{} mappings more", added());
    assert!(lost == OBJECTS / 20 || watch.explains(lost), "{lost}");
}

fn an_arena_after_fork() {
    let watch = Watch::now();
    tenure::set_hand_over_delay(NONE);
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
        // New places are zeros, and watched.
        let mut new = arena.buffer(4 * page_size()).unwrap();
        assert!(is_zero(new.range()));
        fill(new.range());
        new.mark_volatile();
        new.purge().unwrap();
        assert!(new.mark_nonvolatile().unwrap() != Outcome::Intact);
        // As a whole.
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
    watch.assert_lost(cached.range(), &outcome, &[]);
    assert!(is_filled(used.range()));
    used.mark_volatile();
}

fn close_the_descriptor_of_an_arena() {
    tenure::set_hand_over_delay(NONE);
    let arena = VolatileArena::new(64 * page_size()).unwrap();
    let mut pair = [0, 1].map(|_| arena.buffer(4 * page_size()).unwrap());
    assert_eq!(pair[0].range().end(), pair[1].range().start());
    close_userfaultfd();
    // Nothing has been offered: nothing is lost.
    for buffer in &mut pair {
        fill(buffer.range());
        buffer.mark_volatile();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(is_as_told(buffer.range(), &outcome));
    }
    // Both at once, of which only the first has been watched again.
    pair[0].mark_volatile();
    tenure::set_hand_over_delay(LONG);
    pair.iter_mut().for_each(VolatileBuffer::mark_volatile);
    tenure::set_hand_over_delay(NONE);
    for buffer in &mut pair {
        fill(buffer.range());
        buffer.mark_volatile();
        page_out(buffer.range());
        assert!(has_vm_flag(buffer.range(), "um"), "not watched");
        assert_eq!(tenure::stats().unprotected_bytes, 0);
        let _ = buffer.mark_nonvolatile().unwrap();
    }
    // A child watches only what is whole.
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

fn an_arena_whose_descriptor_was_closed() {
    in_child_ok("close_the_descriptor_of_an_arena");
}

/// The same tests, where nothing can be offered: purging puts up bars.
fn without_userfaultfd() {
    bytes_are_lent_only_while_nonvolatile();
    within_the_delay_the_kernel_does_not_know();
    reading_without_unmarking();
    what_is_purged_cannot_be_read();
    all_that_is_volatile_is_purged_at_once();
    a_new_buffer_is_zeros_and_whole_pages();
    buffers_of_an_arena_are_apart();
    an_arena_gives_places_again_as_zeros();
    a_full_arena_says_so();
    buffers_keep_their_arena_alive();
    an_arena_after_fork();
    let mut buffer = buffer(4);
    buffer.mark_volatile();
    assert!(!has_vm_flag(buffer.range(), "um"));
    page_out(buffer.range());
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Intact,
        "never offered"
    );
}

/// Without guard regions, each bar is a mapping of its own, of which there are
/// only so many.
fn purge_with_no_room_for_bars() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let memory = anonymous(256);
    let range = memory.range();
    for page in (0..256).step_by(2) {
        fill(pages(range, page, 1));
    }
    tenure::set_hand_over_delay(LONG);
    unsafe { range.mark_volatile() }.unwrap();
    // Room for some of the bars.
    let others = anonymous(most + 1000);
    let mut page = 0;
    while mapping_count() < most - 100 {
        for _ in 0..(most - 100 - mapping_count()).div_ceil(2) {
            raw_protect(pages(others.range(), page, 1), MprotectFlags::READ);
            page += 2;
        }
    }
    let error = unsafe { range.purge() }.unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    drop(others);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    let Outcome::Purged(runs) = outcome else {
        panic!("a loss without a word")
    };
    for page in 0..256 {
        let page = pages(range, page, 1);
        let is_lost = runs.iter().any(|run| run.contains(page));
        assert!(is_zero(page) || !is_lost && is_filled(page));
        let was_filled = ((page.start() - range.start()) / page_size()).is_multiple_of(2);
        assert!(
            is_lost || is_filled(page) == was_filled,
            "a loss without a word"
        );
    }
}

fn a_purge_that_stops_half_way_forgets_no_loss() {
    in_child_without("userfaultfd,madv_guard", "purge_with_no_room_for_bars");
}

fn everything_without_userfaultfd() {
    for features in [
        "userfaultfd",
        "userfaultfd,madv_guard",
        "userfaultfd,pagemap_scan",
        // What cannot be taken back is not offered.
        "madv_populate",
    ] {
        in_child_without(features, "without_userfaultfd");
    }
}
