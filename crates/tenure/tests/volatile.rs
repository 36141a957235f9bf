//! volatile: what is visible, what is lost, and what is told of it.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::volatile::{Watch, can_offer, is_as_told, minor_faults, read_through};
use common::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous};
use tenure::{
    Error, Features, HugePages, LockMode, Mapping, MemfdPages, MemoryKind, Outcome, PageRange,
    Priority, VolatileBuffer, page_size,
};

/// Why nothing can be offered to the kernel here. What can is offered at once.
fn missing() -> Option<&'static str> {
    tenure::set_hand_over_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    a_purged_page_is_sigbus_with_its_address,
    a_purged_page_is_efault_to_a_system_call,
    lost_pages_are_reported_and_read_as_zeros,
    intact_means_every_byte,
    contents_stay_visible_until_purged,
    a_write_keeps_its_page,
    untouched_pages_are_not_lost,
    untouched_pages_take_no_memory,
    marking_twice_is_harmless,
    marking_again_offers_what_was_written,
    marking_now_offers_whatever_the_delay,
    unmarking_ordinary_memory_is_harmless,
    a_part_can_be_unmarked,
    overlapping_ranges_are_one,
    purge_takes_contents_at_once,
    purge_leaves_ordinary_memory_alone,
    munmap_ends_volatility,
    discard_ends_volatility,
    nothing_is_nothing,
    other_kinds_of_memory_are_refused,
    a_hole_is_refused,
    locked_memory_is_refused,
    missing_access_is_refused,
    another_userfaultfd_is_busy,
    what_was_barred_can_be_offered_later,
    after_fork_both_processes_are_told,
    untouched_pages_are_not_lost_in_a_child,
    a_child_without_userfaultfd_cannot_read_zeros,
    a_closed_descriptor_is_a_loss,
    memory_mapped_over_is_a_loss_and_left_alone,
    several_threads_mark_and_unmark,
    nothing_reported_intact_is_ever_lost,
    what_is_just_being_moved_is_taken_back;
    everywhere:
    a_barred_page_is_sigsegv_with_its_address,
    the_meaning_is_the_same_with_bars;
    children:
    touch_a_purged_page,
    with_bars,
    fork_without_descriptors,
    close_the_descriptor,
);

/// Pages of memory that is filled.
fn filled(page_count: usize) -> Mapping {
    let memory = anonymous(page_count);
    fill(memory.range());
    memory
}

/// A volatile buffer of memory that is filled.
fn cached(page_count: usize) -> VolatileBuffer {
    let mut buffer = VolatileBuffer::from_mapping(filled(page_count)).unwrap();
    buffer.mark_volatile();
    buffer
}

/// Tells whether a system call can read a byte at the address.
fn readable(at: usize) -> Result<(), i32> {
    let (_read, write) = std::io::pipe().unwrap();
    use std::os::fd::AsRawFd;
    match unsafe { libc::write(write.as_raw_fd(), at as *const libc::c_void, 1) } {
        1 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

/// Has every page taken: by the kernel, or where it can be offered nothing, by
/// tenure.
fn take(range: PageRange) {
    match can_offer() {
        true => page_out_all(range),
        false => unsafe { range.purge() }.unwrap(),
    }
}

extern "C" fn report_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let mut line = [signal as usize, code as usize, at];
    unsafe {
        libc::write(1, line.as_mut_ptr().cast(), size_of_val(&line));
        libc::_exit(0);
    }
}

fn install_report() {
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = report_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Prints the address that it is about to touch, as the handler prints the
/// signal, its code and its address.
fn touch_a_purged_page() {
    tenure::set_hand_over_delay(Duration::ZERO);
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 10, 20));
    install_report();
    let victim = range.start() + 25 * page_size() + 123;
    unsafe {
        libc::write(1, (&raw const victim).cast(), size_of::<usize>());
        (victim as *const u8).read_volatile();
    }
    panic!("the purged page was readable");
}

/// Returns the signal that touching a purged page brings, and its code.
fn signal_of_a_purged_page(without: &str) -> (i32, i32) {
    let output = in_child_with("TENURE_WITHOUT", without, "touch_a_purged_page");
    let words: Vec<usize> = output
        .stdout
        .chunks(size_of::<usize>())
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    let [victim, signal, code, at] = words[..] else {
        panic!("{words:?} {output:?}")
    };
    assert_eq!(at, victim, "{at:#x} {victim:#x}");
    (signal as i32, code as i32)
}

fn a_purged_page_is_sigbus_with_its_address() {
    let expected = (libc::SIGBUS, libc::BUS_ADRERR);
    assert_eq!(signal_of_a_purged_page(""), expected);
}

fn a_barred_page_is_sigsegv_with_its_address() {
    for without in WITH_BARS {
        assert_eq!(signal_of_a_purged_page(without).0, libc::SIGSEGV);
    }
}

/// What keeps tenure from offering anything: guard regions, and PROT_NONE.
const WITH_BARS: [&str; 2] = ["userfaultfd", "userfaultfd,madv_guard"];

fn with_bars() {
    assert!(missing().is_some());
    a_purged_page_is_efault_to_a_system_call();
    lost_pages_are_reported_and_read_as_zeros();
    intact_means_every_byte();
    contents_stay_visible_until_purged();
    untouched_pages_are_not_lost();
    untouched_pages_take_no_memory();
    marking_twice_is_harmless();
    marking_again_offers_what_was_written();
    unmarking_ordinary_memory_is_harmless();
    a_part_can_be_unmarked();
    overlapping_ranges_are_one();
    purge_takes_contents_at_once();
    purge_leaves_ordinary_memory_alone();
    munmap_ends_volatility();
    discard_ends_volatility();
    nothing_is_nothing();
    other_kinds_of_memory_are_refused();
    a_hole_is_refused();
    locked_memory_is_refused();
    missing_access_is_refused();
    after_fork_both_processes_are_told();
    untouched_pages_are_not_lost_in_a_child();
    several_threads_mark_and_unmark();
}

fn the_meaning_is_the_same_with_bars() {
    for without in WITH_BARS {
        in_child_without(without, "with_bars");
    }
}

fn a_purged_page_is_efault_to_a_system_call() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 10, 20));
    // write() reads from it, read() writes to it.
    assert_eq!(readable(pages(range, 15, 1).start()), Err(libc::EFAULT));
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    use std::os::fd::AsRawFd;
    let got = unsafe { libc::read(zeros.as_raw_fd(), pages(range, 15, 1).as_ptr().cast(), 1) };
    assert_eq!(
        (got, std::io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::EFAULT))
    );
    assert_eq!(readable(pages(range, 5, 1).start()), Ok(()));
    assert!(matches!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Purged(_)
    ));
    assert_eq!(readable(pages(range, 15, 1).start()), Ok(()));
}

fn lost_pages_are_reported_and_read_as_zeros() {
    let watch = Watch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 10, 20));
    take(pages(range, 100, 1));
    take(pages(range, 500, 12));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    let lost = [
        pages(range, 10, 20),
        pages(range, 100, 1),
        pages(range, 500, 12),
    ];
    watch.assert_lost(range, &outcome, &lost);
    // Ordinary again: nothing can be taken, everything can be written.
    page_out(range);
    fill(range);
    assert!(is_filled(range));
    assert!(!has_vm_flag(range, "um"), "still registered");
}

fn intact_means_every_byte() {
    let watch = Watch::now();
    let mut cached = cached(512);
    let outcome = cached.mark_nonvolatile().unwrap();
    watch.assert_lost(cached.range(), &outcome, &[]);
    page_out(cached.range());
    assert!(is_as_told(cached.range(), &outcome));
}

fn contents_stay_visible_until_purged() {
    let watch = Watch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(has_vm_flag(range, "um"), can_offer());
    // Once before it counts, for what reading needs itself.
    let _ = read_through(pages(range, 0, 1));
    let before = minor_faults();
    let mut gone = 0;
    for page in 0..range.pages() {
        let page = pages(range, page, 1);
        match read_through(page) {
            Some(bytes) => assert!(bytes == pattern(page)),
            None => gone += 1,
        }
    }
    let faults = minor_faults() - before;
    assert!(faults < 64, "{faults} faults for {} pages", range.pages());
    assert!(gone == 0 || watch.explains(gone));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[]);
}

fn a_write_keeps_its_page() {
    let watch = Watch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    let written = pages(range, 200, 2);
    fill(written);
    page_out_all(pages(range, 0, 200));
    page_out_all(pages(range, 202, 310));
    page_out(written);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    let others = [pages(range, 0, 200), pages(range, 202, 310)];
    watch.assert_lost(range, &outcome, &others);
    assert!(is_filled(written));
}

fn untouched_pages_are_not_lost() {
    let memory = anonymous(512);
    let range = memory.range();
    fill(pages(range, 100, 100));
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 100, 100));
    for part in [pages(range, 0, 100), pages(range, 200, 312)] {
        page_out(part);
        assert!(is_zero(part));
    }
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![pages(range, 100, 100)]));
    assert!(is_zero(range));
}

fn untouched_pages_take_no_memory() {
    let watch = Watch::now();
    let memory = anonymous(4096);
    let range = memory.range();
    fill(pages(range, 0, 1));
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    if outcome != Outcome::Intact {
        assert!(watch.explains(1), "{outcome:?}");
        return;
    }
    // Where PAGEMAP_SCAN does not tell the page of zeros from others, what has been
    // offered is taken back with it.
    let expected = match can_offer() && Features::get().pagemap_scan.is_err() {
        true => range.len(),
        false => page_size(),
    };
    assert_eq!(smaps_bytes(range, "Rss"), expected as u64);
}

fn marking_twice_is_harmless() {
    let watch = Watch::now();
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 3, 2));
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(readable(pages(range, 3, 1).start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[pages(range, 3, 2)]);
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
}

fn marking_again_offers_what_was_written() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    fill(range);
    page_out(range);
    assert!(is_filled(range));
    unsafe { range.mark_volatile() }.unwrap();
    take(range);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));
}

fn marking_now_offers_whatever_the_delay() {
    let memory = filled(64);
    let range = memory.range();
    tenure::set_hand_over_delay(Duration::from_secs(3600));
    let offered_bytes = || tenure::stats().offered_bytes;
    let before_bytes = offered_bytes();
    unsafe { range.mark_volatile_with(Priority::Normal) }.unwrap();
    assert_eq!(offered_bytes(), before_bytes);
    unsafe { range.mark_volatile_now(Priority::Normal) }.unwrap();
    assert_eq!(offered_bytes(), before_bytes + range.len() as u64);
    tenure::set_hand_over_delay(Duration::ZERO);
    let _ = unsafe { range.mark_nonvolatile() }.unwrap();
}

fn unmarking_ordinary_memory_is_harmless() {
    let memory = filled(64);
    assert_eq!(
        unsafe { memory.range().mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert!(is_filled(memory.range()));
}

fn a_part_can_be_unmarked() {
    let watch = Watch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    let part = pages(range, 100, 100);
    let told = unsafe { part.mark_nonvolatile() }.unwrap();
    watch.assert_lost(part, &told, &[]);
    take(pages(range, 0, 100));
    page_out(part);
    take(pages(range, 200, 312));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(
        outcome,
        Outcome::Purged(vec![pages(range, 0, 100), pages(range, 200, 312)])
    );
    assert!(is_as_told(part, &told));
}

fn overlapping_ranges_are_one() {
    let watch = Watch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { pages(range, 0, 300).mark_volatile() }.unwrap();
    unsafe { pages(range, 200, 312).mark_volatile() }.unwrap();
    take(pages(range, 190, 30));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[pages(range, 190, 30)]);
    page_out(range);
    assert!(is_as_told(range, &outcome));
}

fn purge_takes_contents_at_once() {
    let memory = anonymous(512);
    fill(pages(memory.range(), 50, 100));
    let mut cached = VolatileBuffer::from_mapping(memory).unwrap();
    cached.mark_volatile();
    let range = cached.range();
    fill(pages(range, 60, 1));
    cached.purge().unwrap();
    assert_eq!(readable(pages(range, 50, 1).start()), Err(libc::EFAULT));
    assert_eq!(readable(pages(range, 0, 1).start()), Ok(()));
    let outcome = cached.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![pages(range, 50, 100)]));
    assert!(is_zero(range));
}

fn purge_leaves_ordinary_memory_alone() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { pages(range, 0, 32).mark_volatile() }.unwrap();
    unsafe { range.purge() }.unwrap();
    assert!(is_filled(pages(range, 32, 32)));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![pages(range, 0, 32)]));
}

fn munmap_ends_volatility() {
    for page_count in [64, (8 << 20) / page_size()] {
        let memory = filled(page_count);
        let range = memory.range();
        unsafe { range.mark_volatile() }.unwrap();
        take(pages(range, 0, 10));
        memory.munmap().unwrap();
        // Whoever gets the addresses next has ordinary memory.
        raw_map_over(range);
        assert!(is_zero(range));
        assert_eq!(
            unsafe { range.mark_nonvolatile() }.unwrap(),
            Outcome::Intact
        );
        raw_unmap(range);
    }
}

fn discard_ends_volatility() {
    for page_count in [64, (8 << 20) / page_size()] {
        let mut memory = filled(page_count);
        let range = memory.range();
        unsafe { range.mark_volatile() }.unwrap();
        take(pages(range, 0, 10));
        memory.discard(..).unwrap();
        assert!(is_zero(range));
        fill(range);
        assert_eq!(
            unsafe { range.mark_nonvolatile() }.unwrap(),
            Outcome::Intact
        );
        page_out(range);
        assert!(is_filled(range));
    }
}

fn nothing_is_nothing() {
    let nothing = PageRange::new(page_size(), 0).unwrap();
    unsafe { nothing.mark_volatile() }.unwrap();
    unsafe { nothing.purge() }.unwrap();
    assert_eq!(
        unsafe { nothing.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
}

fn other_kinds_of_memory_are_refused() {
    let len = 64 * page_size();
    let file = file(len);
    for (builder, kind) in [
        (Mapping::shared_anonymous(len), MemoryKind::Shared),
        (Mapping::memfd(len, MemfdPages::Base), MemoryKind::Shared),
        (
            unsafe { Mapping::file(&file) }.private().read_write(),
            MemoryKind::PrivateFile,
        ),
    ] {
        let memory = builder.map().unwrap();
        fill(memory.range());
        let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
        assert!(
            matches!(refused.error, Error::WrongKind { found, .. } if found == kind),
            "{refused}"
        );
        assert!(is_filled(refused.value.range()));
    }
}

fn a_hole_is_refused() {
    let watch = Watch::now();
    let memory = filled(64);
    let range = memory.range();
    let hole = pages(range, 40, 1);
    raw_unmap(hole);
    let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
    assert!(
        matches!(refused.error, Error::Hole { hole: at, .. } if at == hole),
        "{refused}"
    );
    page_out(pages(range, 0, 40));
    assert!(is_filled(pages(range, 0, 40)));
    assert!(is_filled(pages(range, 41, 23)));

    // Nor is a range with a hole unmarked or purged by halves.
    unsafe { pages(range, 0, 40).mark_volatile() }.unwrap();
    assert!(matches!(unsafe { range.purge() }, Err(Error::Hole { .. })));
    assert!(matches!(
        unsafe { range.mark_nonvolatile() },
        Err(Error::Hole { .. })
    ));
    assert_eq!(has_vm_flag(range, "um"), can_offer());
    let outcome = unsafe { pages(range, 0, 40).mark_nonvolatile() }.unwrap();
    watch.assert_lost(pages(range, 0, 40), &outcome, &[]);
}

fn locked_memory_is_refused() {
    let memory = filled(64);
    memory
        .lock(40 * page_size()..41 * page_size(), LockMode::OnFault)
        .unwrap();
    let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    let range = refused.value.range();
    page_out(pages(range, 0, 40));
    assert!(is_filled(range));
}

fn missing_access_is_refused() {
    let memory = filled(64);
    raw_protect(pages(memory.range(), 60, 4), MprotectFlags::READ);
    let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
    assert!(
        matches!(
            refused.error,
            Error::NoAccess {
                missing: "write",
                ..
            }
        ),
        "{refused}"
    );
    assert!(is_filled(refused.value.range()));
}

fn another_userfaultfd_is_busy() {
    let watch = Watch::now();
    let memory = filled(64);
    let other = register_elsewhere(pages(memory.range(), 32, 32));
    let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
    assert!(matches!(refused.error, Error::Busy { .. }), "{refused}");
    assert_eq!(refused.error.errno(), libc::EBUSY);
    let range = refused.value.range();
    page_out(range);
    assert!(is_filled(range));
    drop(other);
    let mut cached = VolatileBuffer::from_mapping(refused.value).unwrap();
    cached.mark_volatile();
    let outcome = cached.mark_nonvolatile().unwrap();
    watch.assert_lost(range, &outcome, &[]);
}

fn what_was_barred_can_be_offered_later() {
    let memory = anonymous(64);
    let range = memory.range();
    let (filled, rest) = (pages(range, 8, 32), pages(range, 40, 24));
    fill(filled);
    tenure::set_hand_over_delay(Duration::from_secs(3600));
    unsafe { range.mark_volatile() }.unwrap();
    let other = register_elsewhere(filled);
    unsafe { range.purge() }.unwrap();
    drop(other);
    fill(rest);
    tenure::set_hand_over_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![filled]));
    assert!(is_zero(filled) && is_filled(rest));
}

fn after_fork_both_processes_are_told() {
    let watch = Watch::now();
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    take(pages(range, 0, 10));
    let status = fork(|| {
        // What was gone at the fork, and what goes afterwards.
        assert_eq!(readable(pages(range, 5, 1).start()), Err(libc::EFAULT));
        unsafe { pages(range, 20, 4).purge() }.unwrap();
        assert_eq!(readable(pages(range, 20, 1).start()), Err(libc::EFAULT));
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        let lost = [pages(range, 0, 10), pages(range, 20, 4)];
        watch.assert_lost(range, &outcome, &lost);
        0
    });
    assert_eq!(status, 0);
    // The parent's copy is its own.
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[pages(range, 0, 10)]);
}

fn untouched_pages_are_not_lost_in_a_child() {
    // Fork leaves mappings out in which nothing was ever written. Within one
    // that cannot be accessed, the kernel has nothing to join it with.
    let len = 66 * page_size();
    let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.unwrap();
    let around = PageRange::new(at.addr(), len).unwrap();
    let range = pages(around, 1, 64);
    raw_protect(range, MprotectFlags::READ | MprotectFlags::WRITE);
    unsafe { range.mark_volatile() }.unwrap();
    let _ = unsafe { range.mark_nonvolatile() }.unwrap();
    // Known by now, and not looked at again, which has side effects.
    raw_map_over(range);
    unsafe { pages(range, 0, 32).mark_volatile() }.unwrap();
    let status = fork(|| {
        assert!(is_zero(range));
        fill(pages(range, 0, 16));
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Intact);
        assert!(is_filled(pages(range, 0, 16)) && is_zero(pages(range, 16, 48)));
        0
    });
    assert_eq!(status, 0);
    unsafe { around.munmap() }.unwrap();
}

fn fork_without_descriptors() {
    let watch = Watch::now();
    tenure::set_hand_over_delay(Duration::ZERO);
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    page_out_all(pages(range, 0, 10));
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let none = libc::rlimit {
            rlim_cur: 0,
            ..limit
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &none);
    }
    let touched = fork(|| {
        unsafe { pages(range, 5, 1).as_ptr().read_volatile() };
        0
    });
    assert_eq!(touched, -libc::SIGSEGV);
    let unmarked = fork(|| {
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        // What cannot be told for certain counts as lost, and is usable again.
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![range]));
        fill(range);
        assert!(is_filled(range));
        0
    });
    assert_eq!(unmarked, 0);
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[pages(range, 0, 10)]);
}

fn a_child_without_userfaultfd_cannot_read_zeros() {
    in_child_ok("fork_without_descriptors");
}

fn close_the_descriptor() {
    let watch = Watch::now();
    tenure::set_hand_over_delay(Duration::ZERO);
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    // Another file under the number that the userfaultfd had.
    let other = std::fs::File::open("/proc/self/status").unwrap();
    let other = replace_userfaultfd(other);
    page_out_all(pages(range, 0, 10));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));

    // Marking works again, with a descriptor of its own.
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
    page_out_all(pages(range, 0, 10));
    assert_eq!(readable(range.start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_lost(range, &outcome, &[pages(range, 0, 10)]);
    assert!(
        std::io::read_to_string(other).unwrap().contains("VmRSS"),
        "the other file is still open"
    );

    // Marked again while the protection was gone: the loss is not forgotten.
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
    close_userfaultfd();
    unsafe { range.mark_volatile() }.unwrap();
    page_out_all(pages(range, 0, 10));
    assert_eq!(readable(range.start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));
}

fn a_closed_descriptor_is_a_loss() {
    in_child_ok("close_the_descriptor");
}

fn memory_mapped_over_is_a_loss_and_left_alone() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    let over = pages(range, 10, 10);
    raw_map_over(over);
    fill(over);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![over]));
    assert!(
        is_filled(range),
        "what somebody else put there has been changed"
    );
}

fn several_threads_mark_and_unmark() {
    let watch = Watch::now();
    let memory = filled(4 * 256);
    let range = memory.range();
    let watch = &watch;
    std::thread::scope(|scope| {
        for quarter in 0..4 {
            scope.spawn(move || {
                let mine = pages(range, quarter * 256, 256);
                for round in 0..50 {
                    unsafe { mine.mark_volatile() }.unwrap();
                    let victim = pages(mine, round, 3);
                    unsafe { victim.purge() }.unwrap();
                    let outcome = unsafe { mine.mark_nonvolatile() }.unwrap();
                    watch.assert_lost(mine, &outcome, &[victim]);
                    fill(mine);
                }
            });
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Marks and unmarks while other threads have the kernel purge all the time.
fn nothing_reported_intact_is_ever_lost() {
    let memory = anonymous(512);
    let range = memory.range();
    let stop = AtomicBool::new(false);
    let (intact, purged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // Also when an assertion fails: the scope waits for the threads.
        let _stop = SetOnDrop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    page_out(range);
                }
            });
        }
        for _ in 0..300 {
            fill(range);
            unsafe { range.mark_volatile() }.unwrap();
            let lost = match unsafe { range.mark_nonvolatile() }.unwrap() {
                Outcome::Intact => {
                    intact.fetch_add(1, Ordering::Relaxed);
                    Vec::new()
                }
                Outcome::Purged(runs) => {
                    purged.fetch_add(1, Ordering::Relaxed);
                    runs
                }
            };
            let mut at = range.start();
            for run in lost {
                assert!(is_filled(PageRange::new(at, run.start() - at).unwrap()));
                assert!(is_zero(run));
                at = run.end();
            }
            assert!(is_filled(PageRange::new(at, range.end() - at).unwrap()));
        }
    });
    assert!(
        purged.into_inner() > 0,
        "nothing was ever purged: the test shows nothing"
    );
}

/// A huge page that is taken in part is split: for a moment each of its pages is
/// neither there nor gone.
fn what_is_just_being_moved_is_taken_back() {
    const HUGE: usize = 2 << 20;
    let builder = Mapping::anonymous(2 * HUGE).huge_pages(HugePages::Always);
    let mut memory = VolatileBuffer::from_mapping(builder.map().unwrap()).unwrap();
    let range = memory.range();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let first = fastrand::usize(..range.pages());
                    page_out(pages(range, first, 1));
                }
            });
        }
        for _ in 0..100 {
            // Huge pages again.
            unsafe { range.discard() }.unwrap();
            fill(range);
            memory.mark_volatile();
            std::thread::sleep(Duration::from_micros(fastrand::u64(..200)));
            let outcome = memory.mark_nonvolatile().unwrap();
            page_out(range);
            assert!(is_as_told(range, &outcome));
        }
    });
}
