//! volatile: contents that stay visible, pages that are purged, and what is reported of
//! them.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::volatile::{PurgeWatch, can_offer, matches_outcome, minor_faults, read_by_syscall};
use common::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous};
use tenure::{
    Error, HugePages, LockMode, Mapping, MemfdPages, MemoryKind, Outcome, PageRange,
    VolatileBuffer, page_size, volatile::VolatileOptions,
};

/// Returns the reason why nothing can be offered to the kernel here, and makes marking
/// offer immediately.
fn missing() -> Option<&'static str> {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    purged_page_touched_raises_sigbus_at_its_address,
    purged_page_in_syscall_is_efault,
    purged_pages_are_reported_and_read_as_zeros,
    intact_outcome_keeps_every_byte,
    volatile_contents_stay_readable_until_purged,
    written_page_is_not_purged,
    untouched_pages_are_not_reported_purged,
    untouched_pages_stay_unallocated,
    marking_twice_keeps_purges_reported,
    marking_again_offers_rewritten_pages,
    offer_now_ignores_offer_delay,
    unmarking_unmarked_memory_is_intact,
    unmarked_part_of_range_is_kept,
    overlapping_marks_merge,
    purge_drops_contents_immediately,
    purge_keeps_nonvolatile_pages,
    munmap_ends_volatility,
    discard_ends_volatility,
    marking_empty_range_is_ok,
    marking_unsupported_memory_kind_is_rejected,
    marking_range_with_hole_is_rejected,
    marking_locked_memory_is_rejected,
    marking_read_only_memory_is_rejected,
    marking_range_of_foreign_userfaultfd_is_busy,
    guarded_range_marked_again_is_offered,
    fork_parent_and_child_both_report_purges,
    untouched_pages_in_child_are_not_reported_purged,
    child_without_userfaultfd_faults_instead_of_reading_zeros,
    closed_userfaultfd_reports_whole_range_purged,
    marking_without_descriptors_is_emfile,
    range_mapped_over_is_reported_purged_and_untouched,
    concurrent_marks_report_exact_purges,
    intact_pages_under_concurrent_reclaim_keep_every_byte,
    pages_of_splitting_huge_page_are_repopulated;
    everywhere:
    guarded_page_touched_raises_sigsegv_at_its_address,
    volatile_contract_holds_with_guards;
    children:
    touch_purged_page,
    check_contract_with_guards,
    fork_without_descriptors,
    replace_and_close_userfaultfd,
    mark_without_descriptors,
);

/// Maps memory and fills it.
fn filled(page_count: usize) -> Mapping {
    let memory = anonymous(page_count);
    fill(memory.range());
    memory
}

/// Creates a volatile buffer of filled memory.
fn cached(page_count: usize) -> VolatileBuffer {
    let mut buffer = VolatileBuffer::from_mapping(filled(page_count)).unwrap();
    buffer.mark_volatile();
    buffer
}

/// Whether a system call can read a byte at the address; otherwise its errno.
fn readable(at: usize) -> Result<(), i32> {
    let (_read, write) = std::io::pipe().unwrap();
    use std::os::fd::AsRawFd;
    match unsafe { libc::write(write.as_raw_fd(), at as *const libc::c_void, 1) } {
        1 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

/// Purges every page: the kernel does, or tenure itself where nothing can be offered.
fn purge_pages(range: PageRange) {
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

/// Prints the address that it is about to touch; the handler prints the signal, its code
/// and its address.
fn touch_purged_page() {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 10, 20));
    install_report();
    let victim = range.start() + 25 * page_size() + 123;
    unsafe {
        libc::write(1, (&raw const victim).cast(), size_of::<usize>());
        (victim as *const u8).read_volatile();
    }
    panic!("the purged page was readable");
}

/// Returns the signal that touching a purged page raises, and its code.
fn signal_of_purged_page(without: &str) -> (i32, i32) {
    let output = in_child_with("TENURE_WITHOUT", without, "touch_purged_page");
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

fn purged_page_touched_raises_sigbus_at_its_address() {
    let expected = (libc::SIGBUS, libc::BUS_ADRERR);
    assert_eq!(signal_of_purged_page(""), expected);
}

fn guarded_page_touched_raises_sigsegv_at_its_address() {
    for without in GUARD_FALLBACKS {
        assert_eq!(signal_of_purged_page(without).0, libc::SIGSEGV);
    }
}

/// Features without which tenure cannot offer, and purges with guard regions or with
/// PROT_NONE.
const GUARD_FALLBACKS: [&str; 2] = ["userfaultfd", "userfaultfd,madv_guard"];

fn check_contract_with_guards() {
    assert!(missing().is_some());
    purged_page_in_syscall_is_efault();
    purged_pages_are_reported_and_read_as_zeros();
    intact_outcome_keeps_every_byte();
    volatile_contents_stay_readable_until_purged();
    untouched_pages_are_not_reported_purged();
    untouched_pages_stay_unallocated();
    marking_twice_keeps_purges_reported();
    marking_again_offers_rewritten_pages();
    unmarking_unmarked_memory_is_intact();
    unmarked_part_of_range_is_kept();
    overlapping_marks_merge();
    purge_drops_contents_immediately();
    purge_keeps_nonvolatile_pages();
    munmap_ends_volatility();
    discard_ends_volatility();
    marking_empty_range_is_ok();
    marking_unsupported_memory_kind_is_rejected();
    marking_range_with_hole_is_rejected();
    marking_locked_memory_is_rejected();
    marking_read_only_memory_is_rejected();
    fork_parent_and_child_both_report_purges();
    untouched_pages_in_child_are_not_reported_purged();
    concurrent_marks_report_exact_purges();
}

fn volatile_contract_holds_with_guards() {
    for without in GUARD_FALLBACKS {
        in_child_without(without, "check_contract_with_guards");
    }
}

fn purged_page_in_syscall_is_efault() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 10, 20));
    // write() reads the page, read() writes it.
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

fn purged_pages_are_reported_and_read_as_zeros() {
    let watch = PurgeWatch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 10, 20));
    purge_pages(pages(range, 100, 1));
    purge_pages(pages(range, 500, 12));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    let purged = [
        pages(range, 10, 20),
        pages(range, 100, 1),
        pages(range, 500, 12),
    ];
    watch.assert_purged(range, &outcome, &purged);
    // The range is nonvolatile again: nothing can be purged, and every page can be written.
    page_out(range);
    fill(range);
    assert!(is_filled(range));
    assert!(!has_vm_flag(range, "um"), "still registered");
}

fn intact_outcome_keeps_every_byte() {
    let watch = PurgeWatch::now();
    let mut cached = cached(512);
    let outcome = cached.mark_nonvolatile().unwrap();
    watch.assert_purged(cached.range(), &outcome, &[]);
    page_out(cached.range());
    assert!(matches_outcome(cached.range(), &outcome));
}

fn volatile_contents_stay_readable_until_purged() {
    let watch = PurgeWatch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(has_vm_flag(range, "um"), can_offer());
    let faults_of = |range: PageRange, read: &mut dyn FnMut(PageRange)| {
        let before = minor_faults();
        (0..range.pages()).for_each(|page| read(pages(range, page, 1)));
        minor_faults() - before
    };
    // A processor that sets no access flags faults at each page that MADV_FREE was for.
    let plain = filled(512);
    let (start, len) = (plain.as_ptr().cast(), plain.range().len());
    unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxFree) }.unwrap();
    let usual = faults_of(plain.range(), &mut |page| drop(read_by_syscall(page)));
    let mut purged = 0;
    let faults = faults_of(range, &mut |page| match read_by_syscall(page) {
        Some(bytes) => assert!(bytes == pattern(page)),
        None => purged += 1,
    });
    assert!(faults < usual + 64, "{faults} faults instead of {usual}");
    assert!(purged == 0 || watch.explains(purged));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[]);
}

fn written_page_is_not_purged() {
    let watch = PurgeWatch::now();
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
    watch.assert_purged(range, &outcome, &others);
    assert!(is_filled(written));
}

fn untouched_pages_are_not_reported_purged() {
    let memory = anonymous(512);
    let range = memory.range();
    fill(pages(range, 100, 100));
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 100, 100));
    for part in [pages(range, 0, 100), pages(range, 200, 312)] {
        page_out(part);
        assert!(is_zero(part));
    }
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![pages(range, 100, 100)]));
    assert!(is_zero(range));
}

fn untouched_pages_stay_unallocated() {
    let watch = PurgeWatch::now();
    let memory = anonymous(4096);
    let range = memory.range();
    fill(pages(range, 0, 1));
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    if outcome != Outcome::Intact {
        assert!(watch.explains(1), "{outcome:?}");
        return;
    }
    assert_eq!(smaps_bytes(range, "Rss"), page_size() as u64);
}

fn marking_twice_keeps_purges_reported() {
    let watch = PurgeWatch::now();
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 3, 2));
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(readable(pages(range, 3, 1).start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[pages(range, 3, 2)]);
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
}

fn marking_again_offers_rewritten_pages() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    fill(range);
    page_out(range);
    assert!(is_filled(range));
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(range);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));
}

fn offer_now_ignores_offer_delay() {
    let memory = filled(64);
    let range = memory.range();
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    let offered_bytes = || tenure::stats().offered_bytes;
    let before_bytes = offered_bytes();
    unsafe { range.mark_volatile_with(VolatileOptions::new()) }.unwrap();
    assert_eq!(offered_bytes(), before_bytes);
    unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) }.unwrap();
    assert_eq!(offered_bytes(), before_bytes + range.len() as u64);
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let _ = unsafe { range.mark_nonvolatile() }.unwrap();
}

fn unmarking_unmarked_memory_is_intact() {
    let memory = filled(64);
    assert_eq!(
        unsafe { memory.range().mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert!(is_filled(memory.range()));
}

fn unmarked_part_of_range_is_kept() {
    let watch = PurgeWatch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    let part = pages(range, 100, 100);
    let part_outcome = unsafe { part.mark_nonvolatile() }.unwrap();
    watch.assert_purged(part, &part_outcome, &[]);
    purge_pages(pages(range, 0, 100));
    page_out(part);
    purge_pages(pages(range, 200, 312));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(
        outcome,
        Outcome::Purged(vec![pages(range, 0, 100), pages(range, 200, 312)])
    );
    assert!(matches_outcome(part, &part_outcome));
}

fn overlapping_marks_merge() {
    let watch = PurgeWatch::now();
    let memory = filled(512);
    let range = memory.range();
    unsafe { pages(range, 0, 300).mark_volatile() }.unwrap();
    unsafe { pages(range, 200, 312).mark_volatile() }.unwrap();
    purge_pages(pages(range, 190, 30));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[pages(range, 190, 30)]);
    page_out(range);
    assert!(matches_outcome(range, &outcome));
}

fn purge_drops_contents_immediately() {
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

fn purge_keeps_nonvolatile_pages() {
    let memory = filled(64);
    let range = memory.range();
    unsafe { pages(range, 0, 32).mark_volatile() }.unwrap();
    unsafe { range.purge() }.unwrap();
    assert!(is_filled(pages(range, 32, 32)));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![pages(range, 0, 32)]));
}

fn munmap_ends_volatility() {
    // The worker is there before the range goes: its stack must not come to lie in it.
    drop(filled((8 << 20) / page_size()));
    drain_pending();
    for page_count in [64, (8 << 20) / page_size()] {
        let memory = filled(page_count);
        let range = memory.range();
        unsafe { range.mark_volatile() }.unwrap();
        purge_pages(pages(range, 0, 10));
        memory.munmap().unwrap();
        // The next mapping at these addresses is nonvolatile.
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
        purge_pages(pages(range, 0, 10));
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

fn marking_empty_range_is_ok() {
    let nothing = PageRange::new(page_size(), 0).unwrap();
    unsafe { nothing.mark_volatile() }.unwrap();
    unsafe { nothing.purge() }.unwrap();
    assert_eq!(
        unsafe { nothing.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
}

fn marking_unsupported_memory_kind_is_rejected() {
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

fn marking_range_with_hole_is_rejected() {
    let watch = PurgeWatch::now();
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

    // Unmarking and purging a range with a hole fail before they change anything.
    unsafe { pages(range, 0, 40).mark_volatile() }.unwrap();
    assert!(matches!(unsafe { range.purge() }, Err(Error::Hole { .. })));
    assert!(matches!(
        unsafe { range.mark_nonvolatile() },
        Err(Error::Hole { .. })
    ));
    assert_eq!(has_vm_flag(range, "um"), can_offer());
    let outcome = unsafe { pages(range, 0, 40).mark_nonvolatile() }.unwrap();
    watch.assert_purged(pages(range, 0, 40), &outcome, &[]);
}

fn marking_locked_memory_is_rejected() {
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

fn marking_read_only_memory_is_rejected() {
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

fn marking_range_of_foreign_userfaultfd_is_busy() {
    let watch = PurgeWatch::now();
    let memory = filled(64);
    let other = register_with_foreign_userfaultfd(pages(memory.range(), 32, 32));
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
    watch.assert_purged(range, &outcome, &[]);
}

fn guarded_range_marked_again_is_offered() {
    let memory = anonymous(64);
    let range = memory.range();
    let (filled, rest) = (pages(range, 8, 32), pages(range, 40, 24));
    fill(filled);
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    unsafe { range.mark_volatile() }.unwrap();
    let other = register_with_foreign_userfaultfd(filled);
    unsafe { range.purge() }.unwrap();
    drop(other);
    fill(rest);
    tenure::volatile::set_offer_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![filled]));
    assert!(is_zero(filled) && is_filled(rest));
}

fn fork_parent_and_child_both_report_purges() {
    let watch = PurgeWatch::now();
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    purge_pages(pages(range, 0, 10));
    let status = fork(|| {
        // Pages purged before the fork, and pages purged after it.
        assert_eq!(readable(pages(range, 5, 1).start()), Err(libc::EFAULT));
        unsafe { pages(range, 20, 4).purge() }.unwrap();
        assert_eq!(readable(pages(range, 20, 1).start()), Err(libc::EFAULT));
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        let purged = [pages(range, 0, 10), pages(range, 20, 4)];
        watch.assert_purged(range, &outcome, &purged);
        0
    });
    assert_eq!(status, 0);
    // The parent's copy is separate.
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[pages(range, 0, 10)]);
}

fn untouched_pages_in_child_are_not_reported_purged() {
    // Fork omits mappings in which nothing was ever written. The mapping around this one is
    // inaccessible, so the kernel cannot merge the range with a neighbour.
    let len = 66 * page_size();
    let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.unwrap();
    let around = PageRange::new(at.addr(), len).unwrap();
    let range = pages(around, 1, 64);
    raw_protect(range, MprotectFlags::READ | MprotectFlags::WRITE);
    unsafe { range.mark_volatile() }.unwrap();
    let _ = unsafe { range.mark_nonvolatile() }.unwrap();
    // The range is validated by now, and not looked up again, which would have side
    // effects.
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
    let watch = PurgeWatch::now();
    tenure::volatile::set_offer_delay(Duration::ZERO);
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
        // Pages in an unknown state are reported purged, and are usable again.
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![range]));
        fill(range);
        assert!(is_filled(range));
        0
    });
    assert_eq!(unmarked, 0);
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[pages(range, 0, 10)]);
}

fn child_without_userfaultfd_faults_instead_of_reading_zeros() {
    in_child_ok("fork_without_descriptors");
}

fn mark_without_descriptors() {
    tenure::prepare();
    let memory = filled(4);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let marked = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let none = libc::rlimit {
            rlim_cur: 0,
            ..limit
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &none);
        memory.range().mark_volatile()
    };
    assert_eq!(marked.unwrap_err().errno(), libc::EMFILE);
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    unsafe { memory.range().mark_volatile() }.unwrap();
}

fn marking_without_descriptors_is_emfile() {
    in_child_ok("mark_without_descriptors");
}

fn replace_and_close_userfaultfd() {
    without_files_thread();
    let watch = PurgeWatch::now();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let memory = filled(64);
    let range = memory.range();
    unsafe { range.mark_volatile() }.unwrap();
    // Another file gets the number of the userfaultfd.
    let other = std::fs::File::open("/proc/self/status").unwrap();
    let other = replace_userfaultfd(other);
    page_out_all(pages(range, 0, 10));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));

    // Marking works again, with a userfaultfd of its own.
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
    page_out_all(pages(range, 0, 10));
    assert_eq!(readable(range.start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    watch.assert_purged(range, &outcome, &[pages(range, 0, 10)]);
    assert!(
        std::io::read_to_string(other).unwrap().contains("VmRSS"),
        "the other file was closed"
    );

    // Marking again without protection keeps the purge reported.
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
    close_userfaultfd();
    unsafe { range.mark_volatile() }.unwrap();
    page_out_all(pages(range, 0, 10));
    assert_eq!(readable(range.start()), Err(libc::EFAULT));
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![range]));
}

fn closed_userfaultfd_reports_whole_range_purged() {
    in_child_ok("replace_and_close_userfaultfd");
}

fn range_mapped_over_is_reported_purged_and_untouched() {
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
        "memory that another mapping put there was changed"
    );
}

fn concurrent_marks_report_exact_purges() {
    let watch = PurgeWatch::now();
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
                    watch.assert_purged(mine, &outcome, &[victim]);
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

/// Marks and unmarks while other threads make the kernel reclaim all the time.
fn intact_pages_under_concurrent_reclaim_keep_every_byte() {
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
            let runs = match unsafe { range.mark_nonvolatile() }.unwrap() {
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
            for run in runs {
                assert!(is_filled(PageRange::new(at, run.start() - at).unwrap()));
                assert!(is_zero(run));
                at = run.end();
            }
            assert!(is_filled(PageRange::new(at, range.end() - at).unwrap()));
        }
    });
    assert!(
        purged.into_inner() > 0,
        "nothing was ever purged: the test proves nothing"
    );
}

/// Reclaiming part of a huge page splits it: for a moment each of its pages is neither
/// present nor purged.
fn pages_of_splitting_huge_page_are_repopulated() {
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
            // Discarding makes them huge pages again.
            unsafe { range.discard() }.unwrap();
            fill(range);
            memory.mark_volatile();
            std::thread::sleep(Duration::from_micros(fastrand::u64(..200)));
            let outcome = memory.mark_nonvolatile().unwrap();
            page_out(range);
            assert!(matches_outcome(range, &outcome));
        }
    });
}
