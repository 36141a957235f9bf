//! A thread with a descriptor table of its own, which keeps files open whatever becomes of
//! the program's descriptors, `/proc` and user: the userfaultfd, and `pagemap`, `maps` and
//! `stat` of this process.
//!
//! Closing the last descriptor of a userfaultfd ends its registrations; a descriptor in
//! this thread's table keeps them. The files of `/proc` refer to the process that opened
//! them, so they work on where they could no longer be opened: without a
//! free descriptor, after `chroot`, and after `setuid`, which makes the process not
//! dumpable.
//!
//! The thread runs what other threads request, one request at a time, and otherwise
//! sleeps. It ends when nothing needs the userfaultfd any more. A forked child has no copy
//! of it; the child starts its own with its own userfaultfd.

use std::any::Any;
use std::ffi::OsStr;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::fork;
use super::raw::syscall;
use super::thread::Thread;
use super::userfaultfd::identity;

/// A file that the thread holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum PrivateFile {
    Userfaultfd,
    Pagemap,
    Maps,
    Stat,
}

impl PrivateFile {
    /// Opens a file of `/proc` in the descriptor table of the calling thread.
    pub(super) fn open(self) -> Result<OwnedFd, Errno> {
        let open =
            |path: &Path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        match self {
            Self::Pagemap => open(Path::new("/proc/thread-self/pagemap")),
            // Half as many steps for the first thread, which has not ended.
            Self::Maps if rustix::thread::gettid() == rustix::process::getpid() => {
                open(Path::new("/proc/self/maps"))
            }
            Self::Maps => open(Path::new("/proc/thread-self/maps")),
            Self::Stat => {
                // The name that /proc has for it, which may be of another pid namespace.
                let mut id = [0; 16];
                let id_len = rustix::fs::readlinkat_raw(CWD, "/proc/self", &mut id)?;
                // The thread that holds the files may have no memory to allocate from, and
                // no descriptor to say so.
                let mut path = [0; 64];
                let parts = [b"/proc/self/task/".as_slice(), &id[..id_len], b"/stat"];
                let mut len = 0;
                for part in parts {
                    path[len..len + part.len()].copy_from_slice(part);
                    len += part.len();
                }
                open(Path::new(OsStr::from_bytes(&path[..len])))
            }
            Self::Userfaultfd => Err(Errno::NOENT),
        }
    }
}

/// Returns whether this process has started the thread, or has failed to.
pub(super) fn is_started() -> bool {
    // SAFETY: as in `current`.
    let server = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    server.is_some_and(|server| server.is_of_generation() && !server.is_stopped())
}

/// Ends the thread, which closes its files. The caller has seen that nothing needs the
/// userfaultfd, and keeps others from starting the thread meanwhile.
pub(crate) fn stop() {
    let Some(server) = current() else {
        return;
    };
    let mut state = server.wait_until(|state| !state.is_busy());
    if matches!(*state, State::Idle) {
        *state = State::Stopping;
        server.changed.notify_all();
        drop(state);
        // Another thread may be started after that, and must be the only one that answers.
        drop(server.wait_until(|state| !matches!(state, State::Stopping)));
    }
}

/// Starts the thread with a copy of this userfaultfd, and returns once it holds its
/// files. The caller has seen that it is not started.
pub(super) fn start(userfaultfd: &OwnedFd, userfaultfd_identity: (u64, u64)) {
    let Some(server) = new_server() else {
        return;
    };
    let number = userfaultfd.as_raw_fd();
    let serve = move || match Files::take_over(number, userfaultfd_identity) {
        Ok(files) => server.serve(&files),
        Err(_) => server.set(State::Unavailable),
    };
    match Thread::start(c"tenure-files", serve) {
        Ok(_detached) => drop(server.wait_until(|state| !matches!(state, State::Starting))),
        Err(_) => server.set(State::Unavailable),
    }
}

/// Returns the server of a thread that the caller starts; `None` if another thread does.
fn new_server() -> Option<&'static Server> {
    if let Some(stopped) = current() {
        let mut state = stopped.lock();
        let is_stopped = matches!(*state, State::Stopped);
        if is_stopped {
            *state = State::Starting;
        }
        return is_stopped.then_some(stopped);
    }
    let previous = CURRENT.load(Ordering::Acquire);
    let server = Box::into_raw(Box::new(Server {
        generation: fork::generation().ok(),
        pid: std::process::id(),
        state: Mutex::new(State::Starting),
        changed: Condvar::new(),
    }));
    // A parent's server is leaked: its mutex may have been locked at the fork.
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    if CURRENT
        .compare_exchange(previous, server, success, failure)
        .is_err()
    {
        // SAFETY: `into_raw` made it above, and no other thread has seen it.
        drop(unsafe { Box::from_raw(server) });
        return None;
    }
    // SAFETY: `into_raw` made it above, and a server is never freed once it is current.
    Some(unsafe { &*server })
}

/// Runs `work` on the thread, with its descriptor of the file, and returns the result.
/// `None` if the thread does not exist or does not hold the file. `work` must not make
/// another request.
pub(super) fn run_with_file<T: Send>(
    file: PrivateFile,
    work: impl FnOnce(BorrowedFd<'_>) -> T + Send,
) -> Option<T> {
    let (mut work, mut result) = (Some(work), None);
    let mut once = |fd: BorrowedFd<'_>| result = work.take().map(|work| work(fd));
    current()?.request(file, &mut once);
    result
}

/// Returns whether the thread holds the file.
pub(super) fn holds(file: PrivateFile) -> bool {
    run_with_file(file, |_| ()).is_some()
}

/// Returns whether the thread holds its files, which it does until it is stopped.
pub(super) fn is_ready() -> bool {
    current().is_some_and(|server| server.lock().has_files())
}

/// The server of this process, or of a process that this one was forked from.
static CURRENT: AtomicPtr<Server> = AtomicPtr::new(ptr::null_mut());

fn current() -> Option<&'static Server> {
    // SAFETY: null, or from `into_raw`; a server is never freed once it is current.
    let server = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }?;
    // A child that was made without fork handlers (by `clone`) has its parent's
    // generation, and no thread that would answer.
    let is_ours = server.is_of_generation() && server.pid == std::process::id();
    is_ours.then_some(server)
}

type Work<'a> = dyn FnMut(BorrowedFd<'_>) + Send + 'a;

/// The requests to the thread.
struct Server {
    generation: Option<usize>,
    pid: u32,
    state: Mutex<State>,
    /// Notified whenever the state changes.
    changed: Condvar,
}

enum State {
    /// The thread does not hold its files yet.
    Starting,
    /// The thread could not be started, or could not hold the files.
    Unavailable,
    /// The thread is told to end, because nothing needs it.
    Stopping,
    /// The thread answers nothing any more.
    Stopped,
    Idle,
    /// A thread waits for this work to be done.
    Requested(PrivateFile, &'static mut Work<'static>),
    Working,
    /// The work is done, or has panicked; the requesting thread takes the result.
    Done(Result<(), Box<dyn Any + Send>>),
}

impl State {
    fn has_files(&self) -> bool {
        use State::{Starting, Stopped, Stopping, Unavailable};
        !matches!(self, Starting | Unavailable | Stopping | Stopped)
    }

    /// Whether the thread starts, ends, or works for another thread.
    fn is_busy(&self) -> bool {
        !matches!(self, Self::Idle | Self::Unavailable | Self::Stopped)
    }
}

impl Server {
    fn is_stopped(&self) -> bool {
        matches!(*self.lock(), State::Stopped)
    }

    fn is_of_generation(&self) -> bool {
        self.generation == fork::generation().ok()
    }

    fn request(&self, file: PrivateFile, work: &mut Work<'_>) {
        // SAFETY: this extends the lifetime only. The thread uses the reference before
        // it sets `Done`, and this function returns after that.
        let work = unsafe { mem::transmute::<&mut Work<'_>, &'static mut Work<'static>>(work) };
        let mut state = self.wait_until(|state| !state.is_busy());
        if !state.has_files() {
            return;
        }
        *state = State::Requested(file, work);
        self.changed.notify_all();
        drop(state);
        // Other threads wait for `Idle`, so this is the result of this request.
        let mut state = self.wait_until(|state| matches!(state, State::Done(_)));
        let done = mem::replace(&mut *state, State::Idle);
        self.changed.notify_all();
        drop(state);
        if let State::Done(Err(panic)) = done {
            resume_unwind(panic);
        }
    }

    /// Answers requests, on the thread, until it is stopped.
    fn serve(&self, files: &Files) {
        self.set(State::Idle);
        loop {
            let is_next = |state: &State| matches!(state, State::Requested(..) | State::Stopping);
            let mut state = self.wait_until(is_next);
            if matches!(*state, State::Stopping) {
                drop(state);
                return self.set(State::Stopped);
            }
            let requested = mem::replace(&mut *state, State::Working);
            drop(state);
            if let State::Requested(file, work) = requested {
                let run = || files.get(file).into_iter().for_each(&mut *work);
                let done = catch_unwind(AssertUnwindSafe(run));
                self.set(State::Done(done));
            }
        }
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.lock(), |state| !is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of the thread, in its own descriptor table.
struct Files {
    userfaultfd: OwnedFd,
    pagemap: Option<OwnedFd>,
    maps: Option<OwnedFd>,
    stat: Option<OwnedFd>,
}

impl Files {
    /// Gives the calling thread a descriptor table of its own, with these files alone.
    /// EBADF if the number is no longer the userfaultfd's.
    fn take_over(userfaultfd: RawFd, expected: (u64, u64)) -> Result<Self, Errno> {
        let number = usize::try_from(userfaultfd).map_err(|_| Errno::BADF)?;
        close_range(number + 1, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE)?;
        if number > 0 {
            close_range(0, number - 1, 0)?;
        }
        // SAFETY: the table is this thread's own, and nothing else in it uses the number.
        let userfaultfd = unsafe { OwnedFd::from_raw_fd(userfaultfd) };
        match identity(&userfaultfd) {
            Ok(found) if found == expected => {}
            _ => return Err(Errno::BADF),
        }
        Ok(Self {
            userfaultfd,
            pagemap: PrivateFile::Pagemap.open().ok(),
            maps: PrivateFile::Maps.open().ok(),
            stat: PrivateFile::Stat.open().ok(),
        })
    }

    fn get(&self, file: PrivateFile) -> Option<BorrowedFd<'_>> {
        match file {
            PrivateFile::Userfaultfd => Some(self.userfaultfd.as_fd()),
            PrivateFile::Pagemap => self.pagemap.as_ref().map(AsFd::as_fd),
            PrivateFile::Maps => self.maps.as_ref().map(AsFd::as_fd),
            PrivateFile::Stat => self.stat.as_ref().map(AsFd::as_fd),
        }
    }
}

/// `close_range(2)`, by instruction: glibc has it from 2.34 on only.
pub(super) fn close_range(first: usize, last: usize, flags: u32) -> Result<(), Errno> {
    let arguments = [first, last, flags as usize, 0, 0, 0];
    // SAFETY: with CLOSE_RANGE_UNSHARE the call closes descriptors in a new table of this
    // thread; without it, it is made after that.
    match unsafe { syscall(libc::SYS_close_range, arguments) } {
        0.. => Ok(()),
        errno => Err(Errno::from_raw_os_error(-(errno as i32))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::userfaultfd::Userfaultfd;

    fn inode(fd: BorrowedFd<'_>) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    /// Starts the thread. Returns whether it holds its files.
    fn is_available() -> bool {
        let Ok(userfaultfd) = Userfaultfd::open() else {
            return false;
        };
        userfaultfd.keep_open();
        holds(PrivateFile::Userfaultfd)
    }

    #[test]
    fn concurrent_requests_are_each_answered() {
        if !is_available() {
            return;
        }
        let expected = [
            PrivateFile::Userfaultfd,
            PrivateFile::Pagemap,
            PrivateFile::Maps,
        ]
        .map(|file| (file, run_with_file(file, inode).unwrap()));
        assert!(expected[1].1 != expected[2].1);
        let request_often = |(file, inode_of_file)| {
            for count in 0..1000 {
                let answer = run_with_file(file, |fd| (count, inode(fd)));
                assert_eq!(answer, Some((count, inode_of_file)));
            }
        };
        std::thread::scope(|scope| {
            for which in expected.into_iter().chain(expected) {
                scope.spawn(move || request_often(which));
            }
        });
    }

    #[test]
    fn panic_in_a_request_reaches_its_caller_alone() {
        if !is_available() {
            return;
        }
        let panics = |_: BorrowedFd<'_>| resume_unwind(Box::new("as the test wants"));
        let panic = catch_unwind(|| run_with_file::<()>(PrivateFile::Maps, panics)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as the test wants"));
        assert!(holds(PrivateFile::Maps));
    }
}
