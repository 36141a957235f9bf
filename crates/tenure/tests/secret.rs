//! SecretBuffer: how its pages are protected, that it does not move, and that it is wiped.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests look at memory behind the buffer's back"
)]

mod common;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};

use common::neighbour::beside_neighbour;
use common::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, setrlimit};
use tenure::{
    Error, Features, LockMode, PageRange, Result, SecretBuffer,
    lock::{LockFlags, LockScope, lock_all, unlock_all},
    page_size,
};

tests!(
    secret_pages_are_locked_on_fault_wiped_on_fork_and_not_dumped,
    hidden_pages_are_locked_not_dumped_and_not_inherited,
    unused_secret_pages_take_no_memory,
    growth_does_not_move_buffer,
    write_past_max_len_is_out_of_bounds,
    impossible_max_len_is_rejected,
    truncated_bytes_are_wiped_immediately,
    resize_with_zeros_touches_no_page,
    dropped_buffer_is_unmapped_and_uncharged,
    dropped_large_buffer_is_unmapped_with_guards,
    dropped_buffer_is_wiped_before_munmap,
    dropped_buffer_is_forgotten_by_lock_registry,
    access_outside_buffer_raises_sigsegv,
    access_outside_hidden_buffer_raises_sigsegv,
    forked_child_reads_zeros,
    forked_child_has_no_hidden_memory,
    fork_during_creation_inherits_no_hidden_memory,
    buffer_over_memlock_limit_leaves_nothing_mapped,
    hidden_buffer_over_memlock_limit_leaves_nothing_mapped,
    failed_hidden_map_unmaps_no_neighbour,
    hidden_buffer_is_unreadable_through_proc_mem,
    hidden_buffer_without_memfd_secret_is_unsupported,
    read_from_fills_buffer_in_place,
    failed_read_from_leaves_buffer_unchanged,
    ct_eq_compares_contents_and_length,
    debug_output_shows_no_contents,
    buffer_moved_to_another_thread_stays_usable,
    secret_bytes_after_unlock_all_are_not_in_swap,
    buffer_without_descriptors_is_locked_and_wiped,
    buffer_without_proc_is_locked_and_wiped,
    hidden_buffer_without_descriptors_reports_emfile;
    children:
    touch_before,
    touch_behind,
    touch_before_hidden,
    touch_behind_hidden,
    drop_with_failing_munmap,
    drop_hidden_with_failing_munmap,
    create_over_memlock_limit,
    create_hidden_over_memlock_limit,
    create_hidden_over_limit_beside_neighbour,
    create_hidden_without_memfd_secret,
    swap_out_after_unlock_all,
    use_without_descriptors,
    use_without_proc,
    create_hidden_without_descriptors,
);

const SECRET: &[u8] = b"correct horse battery staple";

type Make = fn(usize) -> Result<SecretBuffer>;
const ORDINARY: Make = SecretBuffer::with_max_len;
const HIDDEN: Make = SecretBuffer::hidden_with_max_len;

/// Both kinds, where the kernel has both.
fn kinds() -> Vec<Make> {
    match can_hide() {
        true => vec![ORDINARY, HIDDEN],
        false => vec![ORDINARY],
    }
}

fn can_hide() -> bool {
    Features::get().memfd_secret.is_ok()
}

/// Whether the kernel locks memory of memfd_secret, and counts that. Linux 6.12.117 does
/// neither, though its pages can be neither swapped nor reclaimed.
fn locks_hidden() -> bool {
    use rustix::mm::{MapFlags, ProtFlags};
    let (len, before) = (16 * page_size(), status_kib("VmLck"));
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    assert!(fd >= 0, "memfd_secret");
    let fd = unsafe { <OwnedFd as FromRawFd>::from_raw_fd(fd as i32) };
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, &fd, 0) };
    let at = at.unwrap();
    let locked = status_kib("VmLck") - before;
    unsafe { rustix::mm::munmap(at, len) }.unwrap();
    assert!([0, (len / 1024) as u64].contains(&locked), "{locked}");
    locked > 0
}

/// Both kinds, and whether they are locked.
fn kinds_and_locks() -> Vec<(Make, bool)> {
    let locks = [true, can_hide() && locks_hidden()];
    kinds().into_iter().zip(locks).collect()
}

/// Skips a test of the limit where hidden memory is not locked.
fn skip_unlocked() -> Option<Completion> {
    match (can_hide(), can_hide() && locks_hidden()) {
        (false, _) => Some(skip_hidden()),
        (true, true) => None,
        (true, false) => Some(skip("this kernel does not lock memory of memfd_secret")),
    }
}

fn skip_hidden() -> Completion {
    skip("needs memfd_secret: Linux 5.14, before 6.5 with secretmem.enable=1")
}

/// Creates an empty buffer whose maximum is whole pages, and returns these pages.
fn buffer(make: Make, page_count: usize) -> (SecretBuffer, PageRange) {
    let buffer = make(page_count * page_size()).unwrap();
    let range = pages_of(&buffer);
    (buffer, range)
}

fn pages_of(buffer: &SecretBuffer) -> PageRange {
    let start = buffer.as_slice().as_ptr().expose_provenance();
    PageRange::covering(start, buffer.max_len()).unwrap()
}

/// Returns the pages with their guards.
fn with_guards(range: PageRange) -> PageRange {
    PageRange::new(range.start() - page_size(), range.len() + 2 * page_size()).unwrap()
}

/// Reads the bytes of the pages, whatever the buffer's length.
fn raw_bytes(range: PageRange) -> &'static [u8] {
    unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) }
}

fn is_mapped(range: PageRange) -> bool {
    (0..range.pages()).any(|page| !vm_flags(pages(range, page, 1)).is_empty())
}

fn has_flags(range: PageRange, flags: &[&str]) {
    for flag in flags {
        let found = vm_flags(range);
        assert!(found.iter().any(|found| found == flag), "{flag}: {found:?}");
    }
}

fn secret_pages_are_locked_on_fault_wiped_on_fork_and_not_dumped() {
    let (_buffer, range) = buffer(ORDINARY, 16);
    for page in [0, 15] {
        has_flags(pages(range, page, 1), &["rd", "wr", "lo", "dd", "wf"]);
    }
    assert!(is_locked_on_fault(range));
    if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        has_flags(range, &["nh"]);
    }
    for guard in [0, 17] {
        let found = vm_flags(pages(with_guards(range), guard, 1));
        for flag in ["rd", "wr", "ex", "lo"] {
            assert!(found.iter().all(|found| found != flag), "{found:?}");
        }
    }
}

fn hidden_pages_are_locked_not_dumped_and_not_inherited() -> Completion {
    if !can_hide() {
        return skip_hidden();
    }
    let before = status_kib("VmLck");
    let (_buffer, range) = buffer(HIDDEN, 16);
    for page in [0, 15] {
        has_flags(pages(range, page, 1), &["rd", "wr", "sh", "dd", "dc"]);
    }
    if locks_hidden() {
        has_flags(range, &["lo"]);
        assert_eq!(status_kib("VmLck") - before, (range.len() / 1024) as u64);
    }
    Completion::Completed
}

fn unused_secret_pages_take_no_memory() {
    for (make, locks) in kinds_and_locks() {
        let (mut buffer, range) = buffer(make, 64);
        assert_eq!(count_present(range), 0);
        buffer.extend_from_slice(SECRET).unwrap();
        assert_eq!(count_present(range), 1);
        buffer.extend_from_slice(&vec![1; page_size()]).unwrap();
        assert_eq!(count_present(range), 2);
        if locks {
            assert_eq!(smaps_bytes(range, "Locked"), 2 * page_size() as u64);
        }
    }
}

fn growth_does_not_move_buffer() {
    for make in kinds() {
        let (mut buffer, range) = buffer(make, 16);
        for _ in 0..16 {
            buffer.extend_from_slice(&vec![7; page_size()]).unwrap();
            assert_eq!(buffer.as_slice().as_ptr(), range.as_ptr());
        }
        assert_eq!((buffer.len(), buffer.max_len()), (range.len(), range.len()));
        assert!(buffer.as_slice().iter().all(|&byte| byte == 7));
    }
}

fn write_past_max_len_is_out_of_bounds() {
    for make in kinds() {
        let mut buffer = make(100).unwrap();
        buffer.extend_from_slice(&[1; 90]).unwrap();
        let refused = |from, to| Error::OutOfBounds { from, to, len: 100 };
        let error = buffer.extend_from_slice(&[2; 11]).unwrap_err();
        assert_eq!(error, refused(90, 101));
        assert_eq!(buffer.resize(101, 2), Err(refused(90, 101)));
        assert_eq!(buffer.resize(usize::MAX, 2), Err(refused(90, usize::MAX)));
        assert_eq!(buffer.as_slice(), [1; 90]);
        buffer.extend_from_slice(&[1; 10]).unwrap();
        assert_eq!(buffer.as_slice(), [1; 100]);
        assert_eq!(buffer.extend_from_slice(&[2]), Err(refused(100, 101)));
        buffer.extend_from_slice(&[]).unwrap();
    }
}

fn impossible_max_len_is_rejected() {
    for make in kinds() {
        assert_eq!(make(0).unwrap_err(), Error::EmptyMapping);
        for max in [usize::MAX, isize::MAX as usize, usize::MAX - page_size()] {
            let error = make(max).unwrap_err();
            assert!(matches!(error, Error::Overflow { .. }), "{error}");
        }
    }
}

fn truncated_bytes_are_wiped_immediately() {
    for make in kinds() {
        let (mut buffer, range) = buffer(make, 4);
        buffer.resize(3 * page_size(), 0xee).unwrap();
        buffer.truncate(page_size() + 1);
        assert_eq!(buffer.as_slice(), vec![0xee; page_size() + 1]);
        let (kept, cut) = raw_bytes(range).split_at(page_size() + 1);
        assert!(kept.iter().all(|&byte| byte == 0xee));
        assert!(cut.iter().all(|&byte| byte == 0));
        buffer.truncate(2 * page_size());
        assert_eq!(buffer.len(), page_size() + 1);
        buffer.resize(1, 0xff).unwrap();
        assert_eq!(raw_bytes(range)[..2], [0xee, 0]);
        buffer.clear();
        assert!(buffer.is_empty() && is_zero(range));
    }
}

fn resize_with_zeros_touches_no_page() {
    for make in kinds() {
        let (mut buffer, range) = buffer(make, 8);
        buffer.resize(8 * page_size(), 0).unwrap();
        assert_eq!(count_present(range), 0);
        buffer.as_mut_slice()[5 * page_size()] = 1;
        assert_eq!(count_present(range), 1);
        buffer.clear();
        buffer.resize(10, 3).unwrap();
        buffer.resize(20, 0).unwrap();
        assert_eq!(buffer.as_slice(), [[3; 10], [0; 10]].concat());
    }
}

fn dropped_buffer_is_unmapped_and_uncharged() {
    for (make, locks) in kinds_and_locks() {
        let before = status_kib("VmLck");
        let (mut buffer, range) = buffer(make, 8);
        buffer.extend_from_slice(SECRET).unwrap();
        if locks {
            assert_eq!(status_kib("VmLck") - before, (range.len() / 1024) as u64);
        }
        drop(buffer);
        assert!(!is_mapped(with_guards(range)));
        assert_eq!(status_kib("VmLck"), before);
    }
}

/// From 4 MiB on, release takes another path.
fn dropped_large_buffer_is_unmapped_with_guards() {
    for make in kinds() {
        let (mut buffer, range) = buffer(make, (5 << 20) / page_size());
        buffer.extend_from_slice(SECRET).unwrap();
        drop(buffer);
        assert!(!is_mapped(pages(with_guards(range), 0, 2)));
        assert!(!is_mapped(pages(with_guards(range), range.pages(), 2)));
    }
}

fn dropped_buffer_is_wiped_before_munmap() {
    in_child_ok("drop_with_failing_munmap");
    if can_hide() {
        in_child_ok("drop_hidden_with_failing_munmap");
    }
}

fn drop_with_failing_munmap() {
    drop_and_inspect(ORDINARY);
}

fn drop_hidden_with_failing_munmap() {
    drop_and_inspect(HIDDEN);
}

fn drop_and_inspect(make: Make) {
    let (mut buffer, range) = buffer(make, 8);
    buffer.resize(3 * page_size(), 0xee).unwrap();
    // The dropped buffer stays mapped, and can be inspected.
    refuse(libc::SYS_munmap, libc::ENOMEM);
    assert_eq!(raw_bytes(range)[3 * page_size() - 1], 0xee);
    drop(buffer);
    assert!(is_mapped(range));
    assert!(is_zero(range));
}

fn dropped_buffer_is_forgotten_by_lock_registry() {
    let (buffer, range) = buffer(ORDINARY, 4);
    drop(buffer);
    raw_map_over(range);
    unsafe { rustix::mm::mlock(range.as_ptr().cast(), range.len()) }.unwrap();
    // The lock of the new mapping is not tenure's.
    unsafe { range.unlock(LockFlags::ON_FAULT) }.unwrap();
    assert!(has_vm_flag(range, "lo"));
    raw_unmap(range);
}

fn access_outside_buffer_raises_sigsegv() {
    assert_raises_sigsegv("touch_before");
    assert_raises_sigsegv("touch_behind");
}

fn access_outside_hidden_buffer_raises_sigsegv() -> Completion {
    if !can_hide() {
        return skip_hidden();
    }
    assert_raises_sigsegv("touch_before_hidden");
    assert_raises_sigsegv("touch_behind_hidden");
    Completion::Completed
}

fn assert_raises_sigsegv(child: &str) {
    let output = in_child(child);
    assert_eq!(output.stdout, b"the ends are there\n", "{child}");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{child}");
}

fn touch_before() {
    touch(ORDINARY, |range| range.as_ptr().wrapping_sub(1));
}

fn touch_behind() {
    touch(ORDINARY, |range| range.as_ptr().wrapping_add(range.len()));
}

fn touch_before_hidden() {
    touch(HIDDEN, |range| range.as_ptr().wrapping_sub(1));
}

fn touch_behind_hidden() {
    touch(HIDDEN, |range| range.as_ptr().wrapping_add(range.len()));
}

fn touch(make: Make, outside: fn(PageRange) -> *mut u8) {
    let (_buffer, range) = buffer(make, 4);
    let bytes = raw_bytes(range);
    assert_eq!((bytes[0], bytes[range.len() - 1]), (0, 0));
    println!("the ends are there");
    unsafe { outside(range).read_volatile() };
}

fn forked_child_reads_zeros() {
    let (buffer, range) = buffer(ORDINARY, 8);
    let mut buffer = ManuallyDrop::new(buffer);
    buffer.resize(2 * page_size(), 0xee).unwrap();
    let status = fork(|| {
        assert_eq!(buffer.len(), 2 * page_size());
        assert!(is_zero(range));
        assert!(!has_vm_flag(range, "lo"));
        buffer.as_mut_slice().fill(1);
        buffer.truncate(10);
        buffer.extend_from_slice(&[2; 10]).unwrap();
        assert_eq!(buffer.as_slice(), [[1; 10], [2; 10]].concat());
        unsafe { ManuallyDrop::drop(&mut buffer) };
        assert!(!is_mapped(with_guards(range)));
        0
    });
    assert_eq!(status, 0);
    assert_eq!(buffer.as_slice(), vec![0xee; 2 * page_size()]);
    has_flags(range, &["lo", "wf"]);
    assert!(is_locked_on_fault(range));
    unsafe { ManuallyDrop::drop(&mut buffer) };
}

fn forked_child_has_no_hidden_memory() -> Completion {
    if !can_hide() {
        return skip_hidden();
    }
    let (buffer, range) = buffer(HIDDEN, 8);
    let mut buffer = ManuallyDrop::new(buffer);
    buffer.resize(2 * page_size(), 0xee).unwrap();
    let status = fork(|| {
        unsafe { range.as_ptr().read_volatile() };
        0
    });
    assert_eq!(status, -libc::SIGSEGV);
    let status = fork(|| {
        assert!(!is_mapped(with_guards(range)));
        // The child maps memory of its own there.
        raw_map_over(with_guards(range));
        fill(with_guards(range));
        assert_eq!((buffer.len(), buffer.max_len()), (0, 0));
        assert_eq!(buffer.as_slice(), []);
        assert_eq!(buffer.as_mut_slice(), []);
        buffer.clear();
        buffer.resize(0, 1).unwrap();
        assert!(buffer.extend_from_slice(&[1]).is_err());
        // Nor is there any in a child's child, for which its parent's pages are ordinary.
        let status = fork(|| {
            assert_eq!(buffer.len(), 0);
            unsafe { ManuallyDrop::drop(&mut buffer) };
            i32::from(!is_filled(with_guards(range)))
        });
        assert_eq!(status, 0);
        unsafe { ManuallyDrop::drop(&mut buffer) };
        i32::from(!is_filled(with_guards(range)))
    });
    assert_eq!(status, 0);
    assert_eq!(buffer.as_slice(), vec![0xee; 2 * page_size()]);
    unsafe { ManuallyDrop::drop(&mut buffer) };
    Completion::Completed
}

/// Forks while another thread makes hidden buffers: no child may inherit the memory or its
/// descriptor.
fn fork_during_creation_inherits_no_hidden_memory() -> Completion {
    if !can_hide() {
        return skip_hidden();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                buffer(HIDDEN, 1);
            }
        });
        let inherited = (0..1000).any(|_| fork(|| i32::from(has_secret_memory())) != 0);
        is_done.store(true, Ordering::Relaxed);
        assert!(!inherited);
    });
    Completion::Completed
}

/// Whether secret memory is mapped or open.
fn has_secret_memory() -> bool {
    let name = "/secretmem";
    let is_mapped = std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .contains(name);
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap();
    is_mapped
        || open.any(|entry| {
            let file = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
            file.to_string_lossy().starts_with(name)
        })
}

fn buffer_over_memlock_limit_leaves_nothing_mapped() {
    in_child_ok("create_over_memlock_limit");
}

fn create_over_memlock_limit() {
    check_rejected_over_limit(ORDINARY);
}

fn hidden_buffer_over_memlock_limit_leaves_nothing_mapped() -> Completion {
    if let Some(skipped) = skip_unlocked() {
        return skipped;
    }
    in_child_ok("create_hidden_over_memlock_limit");
    Completion::Completed
}

fn create_hidden_over_memlock_limit() {
    check_rejected_over_limit(HIDDEN);
}

fn create_hidden_over_limit_beside_neighbour() {
    limit_memlock(6 * page_size() as u64);
    beside_neighbour(3 << 20, || assert!(HIDDEN(3 << 20).is_err()));
}

/// The kernel unmaps the target before it refuses to map anything there.
fn failed_hidden_map_unmaps_no_neighbour() -> Completion {
    if let Some(skipped) = skip_unlocked() {
        return skipped;
    }
    in_child_ok("create_hidden_over_limit_beside_neighbour");
    Completion::Completed
}

/// Runs in a process for which the limit holds.
fn check_rejected_over_limit(make: Make) {
    let limit = Some(6 * page_size() as u64);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    drop_privileges();
    let (_first, _) = buffer(make, 4);
    let before = status_kib("VmSize");
    // Large enough to stand out from what the process itself maps.
    let page_count = (3 << 20) / page_size();
    let error = make(page_count * page_size()).unwrap_err();
    let Error::LockLimit {
        limit_bytes,
        used_bytes,
        range,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (limit_bytes, used_bytes, range.pages()),
        (6 * page_size(), 4 * page_size(), page_count)
    );
    assert_eq!(error.errno(), libc::ENOMEM);
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    assert!(status_kib("VmSize") < before + (1 << 10));
    assert!(!is_mapped(pages(range, 0, 1)));
    assert!(make(3 * page_size()).is_err());
    // Memory up to the limit can be locked.
    let mut second = make(2 * page_size()).unwrap();
    second.extend_from_slice(SECRET).unwrap();
}

fn hidden_buffer_is_unreadable_through_proc_mem() -> Completion {
    use std::os::unix::fs::FileExt;
    if !can_hide() {
        return skip_hidden();
    }
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    for (make, is_open) in [(ORDINARY, true), (HIDDEN, false)] {
        let (mut buffer, range) = buffer(make, 1);
        buffer.extend_from_slice(SECRET).unwrap();
        let mut seen = vec![0; SECRET.len()];
        let answer = memory.read_exact_at(&mut seen, range.start() as u64);
        assert_eq!((answer.is_ok(), seen == SECRET), (is_open, is_open));
    }
    Completion::Completed
}

fn hidden_buffer_without_memfd_secret_is_unsupported() {
    in_child_without("memfd_secret", "create_hidden_without_memfd_secret");
}

fn create_hidden_without_memfd_secret() {
    let error = SecretBuffer::hidden_with_max_len(1).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unsupported {
                feature: "memfd_secret",
                answer: tenure::Errno::NOSYS,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("Linux 5.14"), "{error}");
    SecretBuffer::with_max_len(1).unwrap();
}

/// A reader that gives at most `step` bytes at a time, is interrupted in between, and
/// writes to more of the lent slice than it reports.
struct Careless<'a> {
    bytes: &'a [u8],
    step: usize,
    interrupted: bool,
}

impl<'a> Careless<'a> {
    fn new(bytes: &'a [u8], step: usize) -> Self {
        Self {
            bytes,
            step,
            interrupted: false,
        }
    }
}

impl Read for Careless<'_> {
    fn read(&mut self, lent: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        lent.fill(0xff);
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = self.step.min(lent.len());
        self.bytes.read(&mut lent[..count])
    }
}

fn read_from_fills_buffer_in_place() {
    let bytes: Vec<u8> = (0..3 * page_size() + 5)
        .map(|index| (index % 251) as u8)
        .collect();
    for make in kinds() {
        for step in [100, page_size(), usize::MAX] {
            let (mut buffer, range) = buffer(make, 8);
            buffer.extend_from_slice(b"key: ").unwrap();
            let read = buffer.read_from(Careless::new(&bytes, step)).unwrap();
            assert_eq!(read, bytes.len());
            assert_eq!(buffer.as_slice(), [b"key: ", &bytes[..]].concat());
            let behind = &raw_bytes(range)[buffer.len()..];
            assert!(behind.iter().all(|&byte| byte == 0));
        }
        let (mut buffer, range) = buffer(make, 8);
        let mut file = file(10);
        file.rewind().unwrap();
        buffer.read_from(&file).unwrap();
        assert_eq!(buffer.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(count_present(range), 1);
    }
    // Reads up to the last byte that fits.
    let mut exact = SecretBuffer::with_max_len(bytes.len()).unwrap();
    exact.read_from(Careless::new(&bytes, 1000)).unwrap();
    assert_eq!(exact.as_slice(), bytes);
    assert_eq!(exact.read_from(io::empty()).unwrap(), 0);
}

fn failed_read_from_leaves_buffer_unchanged() {
    struct Breaks;
    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
    struct Panics;
    impl Read for Panics {
        fn read(&mut self, lent: &mut [u8]) -> io::Result<usize> {
            lent.fill(0xff);
            // Unlike `panic!`, this prints nothing.
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let max = page_size() + 10;
    let mut buffer = SecretBuffer::with_max_len(max).unwrap();
    let range = pages_of(&buffer);
    let unchanged = |buffer: &SecretBuffer| {
        assert_eq!(buffer.as_slice(), SECRET);
        let behind = &raw_bytes(range)[SECRET.len()..];
        assert!(behind.iter().all(|&byte| byte == 0));
    };
    buffer.extend_from_slice(SECRET).unwrap();
    let too_much = vec![1; max];
    let error = buffer.read_from(Careless::new(&too_much, 99)).unwrap_err();
    let error = error.get_ref().unwrap().downcast_ref::<Error>();
    let wanted = Error::OutOfBounds {
        from: max,
        to: max + 1,
        len: max,
    };
    assert_eq!(error, Some(&wanted));
    unchanged(&buffer);
    let error = buffer.read_from([1].chain(Breaks)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    unchanged(&buffer);
    let reading = std::panic::AssertUnwindSafe(|| buffer.read_from([1].chain(Panics)));
    std::panic::catch_unwind(reading).unwrap_err();
    unchanged(&buffer);
}

fn ct_eq_compares_contents_and_length() {
    for make in kinds() {
        let mut buffer = make(100).unwrap();
        assert!(buffer.ct_eq(b""));
        assert!(!buffer.ct_eq(b"\0"));
        buffer.extend_from_slice(SECRET).unwrap();
        assert!(buffer.ct_eq(SECRET));
        assert!(!buffer.ct_eq(b""));
        assert!(!buffer.ct_eq(&SECRET[1..]));
        assert!(!buffer.ct_eq(&SECRET[..SECRET.len() - 1]));
        assert!(!buffer.ct_eq(&[SECRET, b"\0"].concat()));
        for index in 0..SECRET.len() {
            let mut other = SECRET.to_vec();
            other[index] ^= 0x80;
            assert!(!buffer.ct_eq(&other), "byte {index}");
        }
    }
}

fn debug_output_shows_no_contents() {
    for make in kinds() {
        let mut buffer = make(100).unwrap();
        let empty = (format!("{buffer:?}"), format!("{buffer:#?}"));
        buffer.extend_from_slice(SECRET).unwrap();
        assert_eq!((format!("{buffer:?}"), format!("{buffer:#?}")), empty);
        assert_eq!(empty.0, "SecretBuffer { max_len: 100, .. }");
    }
}

fn buffer_moved_to_another_thread_stays_usable() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    for make in kinds() {
        let mut buffer = make(100).unwrap();
        is_shared(&buffer);
        buffer.extend_from_slice(SECRET).unwrap();
        let thread = std::thread::spawn(move || {
            assert!(buffer.ct_eq(SECRET));
            buffer.extend_from_slice(b"!").unwrap();
            buffer
        });
        assert_eq!(thread.join().unwrap().len(), SECRET.len() + 1);
    }
}

/// Counts the pages in the swap file that begin with the mark.
fn marked_pages(swap: &Swap, mark: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let file = File::open(swap.path()).unwrap();
    // The kernel writes swapped pages past the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let mut pages = bytes.chunks(page_size());
    pages.by_ref().filter(|page| page.starts_with(mark)).count()
}

/// Marks every page, and asks the kernel to write them to swap, which it refuses for
/// locked memory.
fn mark_and_swap_out(range: PageRange, mark: &[u8]) {
    for at in 0..range.pages() {
        let page = pages(range, at, 1);
        unsafe { std::slice::from_raw_parts_mut(page.as_ptr(), mark.len()) }.copy_from_slice(mark);
    }
    flush_all_batches();
    let advice = rustix::mm::Advice::LinuxPageOut;
    let _ = unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) };
}

fn swap_out_after_unlock_all() {
    const PAGES: usize = 256;
    let swap = match Swap::on() {
        Ok(swap) => swap,
        Err(error) => {
            println!("no swap can be made: {error}");
            return;
        }
    };
    let (mut secret, range) = buffer(ORDINARY, PAGES);
    secret.resize(PAGES * page_size(), 0).unwrap();
    for flags in [LockFlags::ON_FAULT, LockFlags::ALL] {
        lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
        unlock_all(flags).unwrap();
        mark_and_swap_out(range, b"tenure-secret");
        // Ordinary memory is swapped out, after the secret would have been.
        let memory = anonymous(PAGES);
        let began = std::time::Instant::now();
        while marked_pages(&swap, b"tenure-ordinary") < PAGES / 2 {
            mark_and_swap_out(memory.range(), b"tenure-ordinary");
            assert!(began.elapsed().as_secs() < 60, "nothing is swapped out");
        }
        assert_eq!(marked_pages(&swap, b"tenure-secret"), 0, "{flags:?}");
    }
    println!("swapped");
}

fn secret_bytes_after_unlock_all_are_not_in_swap() -> Completion {
    if !may_lock_anything() {
        return skip("locks all memory of a process, which RLIMIT_MEMLOCK does not allow");
    }
    let output = in_child("swap_out_after_unlock_all");
    assert_ended_well("swap_out_after_unlock_all", &output);
    match output.stdout.as_slice() {
        b"swapped\n" => Completion::Completed,
        reason => skip(String::from_utf8_lossy(reason).trim()),
    }
}

/// Uses a buffer, and inspects its memory after it is dropped, with no `munmap`.
fn use_and_drop() {
    // From 4 MiB on, release takes another path.
    drop(buffer(ORDINARY, (5 << 20) / page_size()));
    let (mut secret, range) = buffer(ORDINARY, 8);
    assert!((0..8).all(|page| is_locked_without_proc(pages(range, page, 1))));
    secret.resize(3 * page_size(), 0xee).unwrap();
    secret.extend_from_slice(SECRET).unwrap();
    assert!(secret.as_slice().ends_with(SECRET));
    refuse(libc::SYS_munmap, libc::ENOMEM);
    assert_eq!(raw_bytes(range)[3 * page_size() - 1], 0xee);
    drop(secret);
    assert!(is_zero(range));
}

fn use_without_descriptors() {
    let _taken = take_all_descriptors();
    use_and_drop();
}

fn buffer_without_descriptors_is_locked_and_wiped() {
    in_child_ok("use_without_descriptors");
}

fn use_without_proc() {
    let root = std::env::var("TENURE_TEST_ROOT").unwrap();
    std::os::unix::fs::chroot(root).unwrap();
    std::env::set_current_dir("/").unwrap();
    assert!(File::open("/proc/self/maps").is_err());
    if can_hide() {
        let mut hidden = HIDDEN(4096).unwrap();
        hidden.extend_from_slice(SECRET).unwrap();
        assert!(hidden.ct_eq(SECRET));
    }
    use_and_drop();
}

fn buffer_without_proc_is_locked_and_wiped() -> Completion {
    if !is_root() {
        return skip("only root may call chroot");
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    let output = in_child_with("TENURE_TEST_ROOT", path, "use_without_proc");
    assert_ended_well("use_without_proc", &output);
    Completion::Completed
}

fn create_hidden_without_descriptors() {
    let taken = take_all_descriptors();
    let error = HIDDEN(4096).unwrap_err();
    let (call, errno) = ("memfd_secret", tenure::Errno::MFILE);
    assert_eq!(error, Error::System { call, errno });
    drop(taken);
    HIDDEN(4096).unwrap();
}

fn hidden_buffer_without_descriptors_reports_emfile() -> Completion {
    if !can_hide() {
        return skip_hidden();
    }
    in_child_ok("create_hidden_without_descriptors");
    Completion::Completed
}
