//! volatile: programs that run out of descriptors, close them all, or lose `/proc` keep what
//! the kernel has not purged.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use common::volatile::{can_offer, matches_outcome};
use common::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, getrlimit, setrlimit};
use tenure::{Mapping, Outcome, PageRange, VolatileBuffer, VolatileCache, page_size};

tests!(
    unless: || (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)");
    volatile_memory_without_descriptors_is_exact,
    volatile_memory_after_chroot_is_exact,
    volatile_memory_after_setuid_is_exact,
    volatile_memory_after_close_range_is_exact,
    purged_page_after_close_range_raises_sigbus,
    volatile_memory_in_child_without_descriptors_is_exact,
    volatile_memory_in_child_after_close_range_is_exact,
    cache_whose_pins_fail_keeps_every_value,
    borrow_after_lost_protection_does_not_change,
    borrow_in_child_without_userfaultfd_does_not_change,
    poisoned_page_is_reported_purged;
    children:
    use_without_descriptors,
    use_after_chroot,
    use_after_setuid,
    use_after_close_range,
    touch_after_close_range,
    use_in_child_without_descriptors,
    use_in_child_after_close_range,
    fail_every_pin,
    borrow_without_protection,
    borrow_in_child_without_userfaultfd,
    poison_page,
);

const VALUES: u64 = 100;

/// Volatile memory that the kernel has been offered.
struct Offered {
    /// Its first ten pages are purged.
    range: Mapping,
    intact: VolatileBuffer,
    doomed: VolatileBuffer,
    cache: VolatileCache<u64>,
}

fn buffer() -> VolatileBuffer {
    let memory = anonymous(64);
    fill(memory.range());
    let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
    buffer.mark_volatile();
    buffer
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8 + 1; 3 * page_size()]
}

fn filled_cache() -> VolatileCache<u64> {
    let cache = VolatileCache::new();
    for key in 0..VALUES {
        cache.insert(key, &value(key)).unwrap();
    }
    cache
}

impl Offered {
    fn new() -> Self {
        tenure::volatile::set_offer_delay(Duration::ZERO);
        let range = anonymous(64);
        fill(range.range());
        unsafe { range.range().mark_volatile() }.unwrap();
        page_out_all(pages(range.range(), 0, 10));
        Self {
            range,
            intact: buffer(),
            doomed: buffer(),
            cache: filled_cache(),
        }
    }

    /// Uses everything, and opens no file itself.
    fn check(&mut self) {
        self.check_memory();
        check_cache(&self.cache);
        self.cache.insert(VALUES, &value(VALUES)).unwrap();
        assert_eq!(*self.cache.get(&VALUES).unwrap(), value(VALUES));
    }

    fn check_memory(&mut self) {
        let range = self.range.range();
        assert_eq!(peek(range.start()), Err(libc::EFAULT));
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![pages(range, 0, 10)]));
        assert!(matches_outcome(range, &outcome));
        // The range can be volatile again.
        unsafe { range.mark_volatile() }.unwrap();
        unsafe { pages(range, 20, 5).purge() }.unwrap();
        assert_eq!(peek(pages(range, 20, 1).start()), Err(libc::EFAULT));

        assert_eq!(self.intact.is_intact(), Ok(true));
        assert_eq!(self.intact.mark_nonvolatile(), Ok(Outcome::Intact));
        assert!(is_filled(self.intact.range()));

        self.doomed.purge().unwrap();
        assert_eq!(self.doomed.is_intact(), Ok(false));
        let all = Outcome::Purged(vec![self.doomed.range()]);
        assert_eq!(self.doomed.mark_nonvolatile(), Ok(all));
    }
}

fn check_cache(cache: &VolatileCache<u64>) {
    for key in 0..VALUES {
        assert!(cache.contains_key(&key), "{key}");
        assert_eq!(*cache.get(&key).unwrap(), value(key), "{key}");
    }
    assert_eq!(cache.stats().purged, 0);
}

/// Reads a byte by a system call that needs no descriptor: the byte, or the errno.
fn peek(at: usize) -> Result<u8, i32> {
    let mut byte = 0_u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: 1,
    };
    match unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } {
        1 => Ok(byte),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn set_max_descriptors(count: u64) {
    let limit = rustix::process::Rlimit {
        current: Some(count),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Takes all descriptors that the process may have, until the files are dropped.
fn take_all_descriptors() -> Vec<File> {
    set_max_descriptors(256);
    let mut taken = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    taken
}

fn use_without_descriptors() {
    let mut offered = Offered::new();
    let taken = take_all_descriptors();
    offered.check();
    drop(taken);
    check_cache(&offered.cache);
}

fn volatile_memory_without_descriptors_is_exact() {
    in_child_ok("use_without_descriptors");
}

fn use_after_chroot() {
    let mut offered = Offered::new();
    let root = std::env::var("TENURE_TEST_ROOT").unwrap();
    std::os::unix::fs::chroot(root).unwrap();
    std::env::set_current_dir("/").unwrap();
    assert!(File::open("/proc/self/pagemap").is_err());
    offered.check();
}

fn volatile_memory_after_chroot_is_exact() -> Completion {
    if !is_root() {
        return skip("only root may call chroot");
    }
    let root = tempfile::tempdir().unwrap();
    let output = in_child_with(
        "TENURE_TEST_ROOT",
        root.path().to_str().unwrap(),
        "use_after_chroot",
    );
    assert_ended_well("use_after_chroot", &output);
    Completion::Completed
}

fn use_after_setuid() {
    let mut offered = Offered::new();
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
    assert!(File::open("/proc/self/pagemap").is_err());
    offered.check();
}

fn volatile_memory_after_setuid_is_exact() -> Completion {
    if !is_root() {
        return skip("only root may call setuid with another user");
    }
    in_child_ok("use_after_setuid");
    Completion::Completed
}

fn use_after_close_range() {
    let mut offered = Offered::new();
    close_all_descriptors();
    offered.check();
    // Other files get the numbers.
    let others = [(); 20].map(|()| File::open("/dev/null").unwrap());
    let outcome = unsafe { offered.range.range().mark_nonvolatile() }.unwrap();
    assert!(matches!(outcome, Outcome::Purged(_)));
    offered.intact.mark_volatile();
    assert_eq!(offered.intact.mark_nonvolatile(), Ok(Outcome::Intact));
    assert_eq!(tenure::stats().unprotected_bytes, 0);
    drop(others);
}

fn volatile_memory_after_close_range_is_exact() {
    in_child_ok("use_after_close_range");
}

fn touch_after_close_range() {
    let offered = Offered::new();
    close_all_descriptors();
    unsafe { offered.range.range().as_ptr().read_volatile() };
}

fn purged_page_after_close_range_raises_sigbus() {
    let output = in_child("touch_after_close_range");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

fn use_in_child_without_descriptors() {
    let mut offered = Offered::new();
    let status = fork(|| {
        let _taken = take_all_descriptors();
        offered.check_memory();
        0
    });
    assert_eq!(status, 0);
    offered.check();
}

fn volatile_memory_in_child_without_descriptors_is_exact() {
    in_child_ok("use_in_child_without_descriptors");
}

fn use_in_child_after_close_range() {
    let mut offered = Offered::new();
    // The parent's threads are not the child's.
    close_all_descriptors();
    let status = fork(|| {
        // The first call in the child starts its thread.
        assert_eq!(offered.intact.is_intact(), Ok(true));
        close_all_descriptors();
        offered.check_memory();
        0
    });
    assert_eq!(status, 0);
    offered.check();
}

fn volatile_memory_in_child_after_close_range_is_exact() {
    in_child_ok("use_in_child_after_close_range");
}

fn fail_every_pin() {
    // Nothing can be unmarked.
    without_files_thread();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let cache = filled_cache();
    let mut taken = take_all_descriptors();
    for key in 0..VALUES {
        // A background thread may have closed one.
        taken.extend(File::open("/dev/null"));
        assert!(cache.get(&key).is_none(), "{key}");
        assert!(!cache.contains_key(&key), "{key}");
        // Each insertion checks other values as well.
        cache.insert(VALUES + key, &value(0)).unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.purged, stats.misses), (0, VALUES));
    assert_eq!(stats.values, 2 * VALUES);
    drop(taken);
    check_cache(&cache);
}

fn cache_whose_pins_fail_keeps_every_value() {
    in_child_ok("fail_every_pin");
}

/// Borrows a buffer of which the kernel is still to reclaim what it may.
fn assert_borrow_does_not_change(buffer: &VolatileBuffer) {
    let bytes = buffer.as_slice().unwrap();
    let before = bytes.to_vec();
    for _ in 0..20 {
        flush_all_batches();
        page_out(buffer.range());
    }
    assert!(bytes == before, "bytes changed under a borrow");
}

fn borrow_without_protection() {
    without_files_thread();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut buffer = buffer();
    page_out_all(pages(buffer.range(), 0, 10));
    close_userfaultfd();
    let all: PageRange = buffer.range();
    assert_eq!(buffer.mark_nonvolatile(), Ok(Outcome::Purged(vec![all])));
    assert!(is_zero(pages(all, 0, 10)));
    // The kernel may have purged more by itself, but never a part of a page.
    let mut kept = (10..all.pages()).map(|page| pages(all, page, 1));
    assert!(kept.all(|page| is_zero(page) || is_filled(page)));
    assert_borrow_does_not_change(&buffer);
}

fn borrow_after_lost_protection_does_not_change() {
    in_child_ok("borrow_without_protection");
}

fn borrow_in_child_without_userfaultfd() {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut buffer = buffer();
    set_max_descriptors(0);
    let parent = std::process::id();
    if unsafe { libc::fork() } > 0 {
        unsafe { libc::_exit(0) };
    }
    // The fork handler had no descriptor for a userfaultfd.
    set_max_descriptors(256);
    // The kernel does not reclaim a page at once that the parent has, too.
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(1));
    }
    let all = buffer.range();
    assert_eq!(buffer.mark_nonvolatile(), Ok(Outcome::Purged(vec![all])));
    assert_borrow_does_not_change(&buffer);
    println!("unchanged");
}

fn borrow_in_child_without_userfaultfd_does_not_change() {
    let output = in_child("borrow_in_child_without_userfaultfd");
    assert_eq!(output.stdout, b"unchanged\n", "{output:?}");
}

/// The exit status of a child that cannot run its test.
const CANNOT: i32 = 77;

fn poison_page() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut buffer = buffer();
    let page = pages(buffer.range(), 30, 1);
    let poisoned = unsafe { libc::madvise(page.as_ptr().cast(), page.len(), libc::MADV_HWPOISON) };
    if poisoned != 0 {
        std::process::exit(CANNOT);
    }
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![page]));
    assert!(matches_outcome(buffer.range(), &outcome));
}

fn poisoned_page_is_reported_purged() -> Completion {
    if !machine_is_ours() || !is_root() {
        return skip("takes a page of memory from the machine for good");
    }
    let output = in_child("poison_page");
    if output.status.code() == Some(CANNOT) {
        return skip("needs MADV_HWPOISON (CONFIG_MEMORY_FAILURE)");
    }
    assert_ended_well("poison_page", &output);
    Completion::Completed
}
