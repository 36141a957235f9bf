//! `SharedArena`: buffers that several processes pin, purge and free.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::names::without_names;
use common::volatile::{was_under_pressure, watch_pressure};
use common::*;
use libtest_mimic::Completion;
use tenure::volatile::Priority;
use tenure::{Features, SharedArena, SharedBuffer, SharedReader, page_size, stats};

tests!(
    buffer_is_found_by_another_process,
    purged_buffer_is_reported_and_zeros,
    pinned_buffer_is_not_purged,
    lowest_priority_and_oldest_is_purged_first,
    purged_page_touched_raises_sigbus_at_its_address,
    purged_page_in_a_system_call_is_efault,
    pins_of_a_killed_process_end,
    freed_buffer_is_found_no_more,
    full_arena_refuses_a_buffer,
    forked_child_has_none_of_its_parents_pins,
    more_processes_than_slots_are_refused,
    name_is_created_once_and_removed,
    wrong_names_and_foreign_files_are_errors,
    truncated_file_is_an_error,
    child_made_by_bare_clone_ends_none_of_its_parents_pins,
    reader_finds_contents_until_they_are_purged,
    reader_of_a_name_cannot_write_and_takes_no_slot,
    allocated_and_purged_buffers_are_counted;
    children:
    touch_purged_page,
);

const LEN: usize = 100_000;

fn arena() -> SharedArena {
    watch_pressure();
    SharedArena::new(16, LEN).unwrap()
}

fn filled(arena: &SharedArena, byte: u8, priority: Priority) -> SharedBuffer {
    let (buffer, pin) = arena.allocate(LEN, priority).unwrap();
    pin.write(0, &[byte; LEN]).unwrap();
    buffer
}

/// Whether each byte is this one.
fn has(pin: &tenure::SharedPin, byte: u8) -> bool {
    let mut bytes = vec![!byte; pin.buffer().len()];
    pin.read(0, &mut bytes).unwrap();
    bytes.iter().all(|&found| found == byte)
}

fn buffer_is_found_by_another_process() {
    let arena = arena();
    let (buffer, pin) = arena.allocate(LEN, Priority::Normal).unwrap();
    assert!(pin.is_intact() && has(&pin, 0));
    pin.write(0, &[7; LEN]).unwrap();
    let passed_on = arena.as_fd().try_clone_to_owned().unwrap();
    let status = fork(|| {
        let arena = SharedArena::from_fd(passed_on).unwrap();
        let pin = arena.buffer(buffer.id()).unwrap().pin().unwrap();
        assert!(pin.is_intact() && has(&pin, 7));
        assert_eq!(unsafe { pin.as_ptr().add(LEN - 1).read() }, 7);
        pin.write(LEN - 1, &[8]).unwrap();
        0
    });
    assert_eq!(status, 0);
    assert_eq!(unsafe { pin.as_ptr().add(LEN - 1).read() }, 8);
    assert!(pin.read(1, &mut [0; LEN]).is_err() && pin.write(usize::MAX, &[0]).is_err());
}

fn purged_buffer_is_reported_and_zeros() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    assert!(buffer.purge().unwrap());
    assert_eq!(arena.stats().unwrap().bytes, 0);
    let pin = buffer.pin().unwrap();
    assert!(!pin.is_intact() && has(&pin, 0));
    assert!(buffer.pin().unwrap().is_intact());
    pin.write(0, &[9; LEN]).unwrap();
    assert!(has(&pin, 9));
    let stats = arena.stats().unwrap();
    assert_eq!((stats.live, stats.pinned, stats.buffers), (1, 1, 1));
    assert!(stats.purged >= 1 && stats.processes == 1);
}

fn pinned_buffer_is_not_purged() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Lowest);
    let elsewhere = SharedArena::from_fd(arena.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let pin = buffer.pin().unwrap();
    let of_other = elsewhere.buffer(buffer.id()).unwrap();
    assert!(!of_other.purge().unwrap());
    assert_eq!(elsewhere.purge(usize::MAX).unwrap(), 0);
    let second = of_other.pin().unwrap();
    drop(pin);
    assert!(!buffer.purge().unwrap());
    drop(second);
    assert!(buffer.purge().unwrap());
}

fn lowest_priority_and_oldest_is_purged_first() {
    let arena = arena();
    let order = [2, 1, 0];
    let buffers = order.map(|priority| filled(&arena, 1, Priority::ALL[priority]));
    // The clock that counts has ticks of 10 ms at most.
    std::thread::sleep(Duration::from_millis(25));
    let younger = filled(&arena, 1, Priority::Low);
    let is_live = |buffer: &SharedBuffer| buffer.pin().unwrap().is_intact();
    let pages = LEN.next_multiple_of(page_size());
    let purged = arena.purge(pages + 1).unwrap();
    let are_live = [0, 1, 2].map(|index| is_live(&buffers[index]));
    let is_younger_live = is_live(&younger);
    // Under pressure the evictor purges others, too.
    if !was_under_pressure() {
        assert_eq!(purged, 2 * pages);
        assert_eq!(are_live, [true, false, false]);
        assert!(is_younger_live);
    }
}

extern "C" fn report_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let found = [signal as usize, unsafe { (*info).si_addr() } as usize];
    unsafe {
        libc::write(1, found.as_ptr().cast(), size_of_val(&found));
        libc::_exit(0);
    }
}

fn touch_purged_page() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    let elsewhere = SharedArena::from_fd(arena.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let at = elsewhere
        .buffer(buffer.id())
        .unwrap()
        .pin()
        .unwrap()
        .as_ptr();
    assert!(buffer.purge().unwrap());
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = report_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        let victim = at.add(page_size() + 9);
        libc::write(1, (&raw const victim).cast(), size_of::<usize>());
        victim.read_volatile();
    }
    panic!("the purged page was readable");
}

fn purged_page_touched_raises_sigbus_at_its_address() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("needs userfaultfd");
    }
    let output = in_child("touch_purged_page");
    let words = output.stdout.chunks_exact(size_of::<usize>());
    let words: Vec<_> = words
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    let [victim, signal, at] = words[..] else {
        panic!("{words:?} {output:?}")
    };
    assert_eq!((signal as i32, at), (libc::SIGBUS, victim));
    Completion::Completed
}

fn purged_page_in_a_system_call_is_efault() -> Completion {
    let arena = arena();
    if !arena.is_protected().unwrap() {
        return skip("needs userfaultfd");
    }
    let buffer = filled(&arena, 7, Priority::Normal);
    let at = buffer.pin().unwrap().as_ptr();
    assert!(buffer.purge().unwrap());
    let (_read, write) = rustix::pipe::pipe().unwrap();
    let bytes = unsafe { std::slice::from_raw_parts(at, 8) };
    assert_eq!(
        rustix::io::write(&write, bytes),
        Err(rustix::io::Errno::FAULT)
    );
    // Made again, it is ordinary.
    let pin = buffer.pin().unwrap();
    assert_eq!(unsafe { pin.as_ptr().read() }, 0);
    Completion::Completed
}

fn pins_of_a_killed_process_end() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    let status = fork(|| {
        let pin = buffer.pin().unwrap();
        assert!(has(&pin, 7) || !pin.is_intact());
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        1
    });
    assert_eq!(status, -libc::SIGKILL);
    assert_eq!(arena.stats().unwrap().pinned, 1);
    // The evictor may be at it, which clears up as well.
    let end = Instant::now() + Duration::from_secs(60);
    while !buffer.purge().unwrap() {
        assert!(Instant::now() < end, "the pin of a dead process stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    let stats = arena.stats().unwrap();
    assert_eq!((stats.pinned, stats.processes, stats.bytes), (0, 1, 0));
}

fn freed_buffer_is_found_no_more() {
    let arena = arena();
    let live = filled(&arena, 7, Priority::Normal);
    let purged = filled(&arena, 7, Priority::Normal);
    assert!(purged.purge().unwrap());
    let pin = live.pin().unwrap();
    for buffer in [live, purged] {
        let (id, copy) = (buffer.id(), buffer.clone());
        buffer.free().unwrap();
        assert_eq!(arena.buffer(id).unwrap_err().errno(), libc::ENOENT);
        assert_eq!(copy.pin().unwrap_err().errno(), libc::ENOENT);
        assert!(copy.free().is_err());
    }
    assert_eq!(arena.stats().unwrap().buffers, 1, "it is pinned");
    assert!(has(&pin, 7) || was_under_pressure());
    drop(pin);
    let stats = arena.stats().unwrap();
    assert_eq!((stats.buffers, stats.bytes), (0, 0));
    assert_eq!(arena.buffer(u64::MAX).unwrap_err().errno(), libc::ENOENT);
}

fn full_arena_refuses_a_buffer() {
    let arena = SharedArena::new(2, 10).unwrap();
    let allocate = |len| arena.allocate(len, Priority::Normal);
    let errno = |result: tenure::Result<_>| result.map(drop).unwrap_err().errno();
    assert_eq!(errno(allocate(page_size() + 1)), libc::EINVAL);
    let (first, _) = allocate(page_size()).unwrap();
    let (_second, pin) = allocate(0).unwrap();
    assert!(pin.buffer().is_empty() && pin.write(0, &[]).is_ok());
    assert_eq!(errno(allocate(1)), libc::ENOMEM);
    first.free().unwrap();
    assert!(allocate(1).is_ok());
    for (count, max_bytes) in [(0, 1), (usize::MAX, 1), (1, usize::MAX)] {
        let error = SharedArena::new(count, max_bytes).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
}

fn forked_child_has_none_of_its_parents_pins() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    let pin = buffer.pin().unwrap();
    let status = fork(|| {
        assert!(pin.as_ptr().is_null() && pin.read(0, &mut [0]).is_err());
        drop(unsafe { std::ptr::read(&pin) });
        let own = buffer.pin().unwrap();
        assert!(own.is_intact() && has(&own, 7));
        assert_eq!(arena.stats().unwrap().processes, 2);
        drop(own);
        assert!(!buffer.purge().unwrap(), "the parent has pinned it");
        drop(unsafe { std::ptr::read(&arena) });
        0
    });
    assert_eq!(status, 0);
    let stats = arena.stats().unwrap();
    assert_eq!((stats.pinned, stats.processes), (1, 1));
    assert!(buffer.pin().unwrap().is_intact());
}

fn more_processes_than_slots_are_refused() {
    let arena = arena();
    let attach = || SharedArena::from_fd(arena.as_fd().try_clone_to_owned().unwrap());
    let mut all: Vec<_> = (1..48).map(|_| attach().unwrap()).collect();
    assert_eq!(attach().unwrap_err().errno(), libc::EUSERS);
    all.pop();
    assert!(attach().is_ok());
}

/// A name of this process, whose file is removed in the end.
struct Name(String);

impl Name {
    fn new() -> Self {
        Self(format!("test.{}.{}", std::process::id(), fastrand::u64(..)))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/tenure.{}", self.0))
    }

    fn open(&self) -> tenure::Result<SharedArena> {
        SharedArena::open(&self.0, 16, LEN)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

fn name_is_created_once_and_removed() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    let name = Name::new();
    let arena = name.open().unwrap();
    assert_eq!(
        fs::metadata(name.path()).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let buffer = filled(&arena, 7, Priority::Normal);
    let again = SharedArena::open(&name.0, 5, 1).unwrap();
    let pin = again.buffer(buffer.id()).unwrap().pin().unwrap();
    assert!(has(&pin, 7) || was_under_pressure());
    SharedArena::remove(&name.0).unwrap();
    assert!(has(&pin, 7) || was_under_pressure());
    assert_eq!(
        SharedArena::remove(&name.0).unwrap_err().errno(),
        libc::ENOENT
    );
    Completion::Completed
}

fn wrong_names_and_foreign_files_are_errors() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    let errno = |name: &str| SharedArena::open(name, 16, LEN).unwrap_err().errno();
    for wrong in ["", "a/b", "../x", "a\0b", &"n".repeat(201)] {
        assert_eq!(errno(wrong), libc::EINVAL, "{wrong:?}");
    }
    let name = Name::new();
    symlink("/dev/null", name.path()).unwrap();
    assert_eq!(errno(&name.0), libc::ELOOP);
    fs::remove_file(name.path()).unwrap();
    fs::write(name.path(), "").unwrap();
    fs::set_permissions(name.path(), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(errno(&name.0), libc::EPROTO, "empty");
    fs::write(name.path(), vec![b'x'; 10_000]).unwrap();
    assert_eq!(errno(&name.0), libc::EPROTO, "foreign");
    fs::set_permissions(name.path(), PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(errno(&name.0), libc::EACCES, "open for others");
    fs::remove_file(name.path()).unwrap();
    drop(name.open().unwrap());
    let file = File::options().write(true).open(name.path()).unwrap();
    file.write_all_at(&[99], 8).unwrap();
    assert_eq!(errno(&name.0), libc::EPROTO, "another version");
    if is_root() {
        std::os::unix::fs::chown(name.path(), Some(65534), None).unwrap();
        assert_eq!(errno(&name.0), libc::EACCES, "of another user");
    }
    let unsealed = tempfile::tempfile().unwrap();
    let error = SharedArena::from_fd(unsealed.into()).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM);
    Completion::Completed
}

fn truncated_file_is_an_error() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    for len in [0, 1, 5000] {
        let name = Name::new();
        let arena = name.open().unwrap();
        let buffer = filled(&arena, 7, Priority::Normal);
        let pin = buffer.pin().unwrap();
        let file = File::options().write(true).mode(0o600).open(name.path());
        file.unwrap().set_len(len).unwrap();
        let errno = |result: tenure::Result<()>| result.unwrap_err().errno();
        assert_eq!(errno(pin.read(0, &mut [0])), libc::EIO);
        assert_eq!(errno(buffer.pin().map(drop)), libc::EPROTO);
        assert_eq!(errno(buffer.purge().map(drop)), libc::EPROTO);
        assert_eq!(errno(arena.stats().map(drop)), libc::EPROTO);
        assert_eq!(errno(name.open().map(drop)), libc::EPROTO);
        assert!(arena.allocate(1, Priority::Normal).is_err());
        drop((pin, buffer, arena));
    }
    Completion::Completed
}

fn child_made_by_bare_clone_ends_none_of_its_parents_pins() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    let pin = buffer.pin().unwrap();
    // SAFETY: the child makes system calls, and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        let is_refused = buffer.pin().is_err() && pin.read(0, &mut [0]).is_err();
        drop((pin, buffer, arena));
        // SAFETY: the call does not return.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the child was not waited for.
    unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(arena.stats().unwrap().pinned, 1);
    assert!(!buffer.purge().unwrap() && has(&pin, 7) || !pin.is_intact());
}

fn reader_finds_contents_until_they_are_purged() {
    let arena = arena();
    let buffer = filled(&arena, 7, Priority::Normal);
    let id = buffer.id();
    let fd = arena.as_fd().try_clone_to_owned().unwrap();
    let reader = SharedReader::from_fd(fd).unwrap();
    let mut bytes = [0; 10];
    let mut read = |id, at| {
        reader
            .read(id, at, &mut bytes)
            .map(|is_valid| (is_valid, bytes))
    };
    let errno = |result: tenure::Result<_>| result.map(drop).unwrap_err().errno();
    let pin = buffer.pin().unwrap();
    if pin.is_intact() {
        assert_eq!(read(id, LEN - 10).unwrap(), (true, [7; 10]));
    }
    assert_eq!(reader.len(id).unwrap(), LEN);
    assert_eq!(errno(read(id, LEN - 9)), libc::EINVAL);
    assert_eq!(errno(read(id ^ 1 << 40, 0)), libc::ENOENT);
    drop(pin);
    assert!(buffer.purge().unwrap());
    assert!(!read(id, 0).unwrap().0);
    buffer.free().unwrap();
    assert_eq!(errno(read(id, 0)), libc::ENOENT);
}

fn reader_of_a_name_cannot_write_and_takes_no_slot() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    let name = Name::new();
    let missing = SharedReader::open(&name.0).unwrap_err();
    assert_eq!(missing.errno(), libc::ENOENT);
    let arena = name.open().unwrap();
    let buffer = filled(&arena, 7, Priority::Normal);
    let pin = buffer.pin().unwrap();
    let reader = SharedReader::open(&name.0).unwrap();
    assert_eq!(reader.stats().unwrap().processes, 1);
    // No mapping of the file is writable in a process that has only a reader.
    let status = fork(|| {
        drop(unsafe { std::ptr::read(&arena) });
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_file = maps.lines().filter(|line| line.contains(&name.0));
        assert!(of_file.filter(|line| line.contains(" r--s ")).count() == 1);
        let mut byte = [0];
        let is_valid = reader.read(buffer.id(), 0, &mut byte).unwrap();
        assert!(is_valid && byte == [7] || !pin.is_intact());
        0
    });
    assert_eq!(status, 0);
    let file = File::options().write(true).open(name.path()).unwrap();
    file.set_len(0).unwrap();
    let error = reader.read(buffer.id(), 0, &mut [0]).unwrap_err();
    assert_eq!(error.errno(), libc::EPROTO);
    Completion::Completed
}

fn allocated_and_purged_buffers_are_counted() {
    let arena = arena();
    let before = stats();
    let buffer = filled(&arena, 7, Priority::Normal);
    assert!(buffer.purge().unwrap());
    let after = stats();
    let bytes = LEN.next_multiple_of(page_size()) as u64;
    let allocated = (after.shared_allocated, before.shared_allocated);
    assert_eq!(allocated.0.calls - allocated.1.calls, 1);
    assert_eq!(allocated.0.bytes - allocated.1.bytes, bytes);
    assert_eq!(after.shared_purged.calls - before.shared_purged.calls, 1);
    assert_eq!(
        after.shared_purged.bytes - before.shared_purged.bytes,
        bytes
    );
}
