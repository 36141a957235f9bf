//! Threads of tenure's own, started with pthread_create.
//!
//! The standard library keeps a list of its threads' stacks under a mutex, which a
//! child has taken for ever if another thread was starting or ending in the moment of
//! the fork: no thread of the standard library starts there again, and whoever starts
//! one waits. The C library has whole locks in a child.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Errno;
use super::process::step_behind;

/// As much as threads of the standard library have.
const STACK_BYTES: usize = 2 << 20;

/// What a thread has come to: an answer, or the panic it ended with.
pub(crate) type Answer<T> = Result<T, Box<dyn Any + Send>>;

/// A thread that was started. Dropping it lets it run on alone.
#[derive(Debug)]
pub(crate) struct Thread<T> {
    id: libc::pthread_t,
    shared: Arc<Shared<T>>,
    is_joined: bool,
}

#[derive(Debug)]
struct Shared<T> {
    is_finished: AtomicBool,
    answer: Mutex<Option<Answer<T>>>,
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread; no signal of the program is delivered to it.
    pub(crate) fn start(
        name: &'static CStr,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            is_finished: AtomicBool::new(false),
            answer: Mutex::new(None),
        });
        let of_thread = Arc::clone(&shared);
        let id = start(Box::new(move || {
            // It can be told by in a debugger and in /proc; nothing depends on it.
            let _ = rustix::thread::set_name(name);
            let answer = catch_unwind(AssertUnwindSafe(body));
            *of_thread.lock() = Some(answer);
            of_thread.is_finished.store(true, Ordering::Release);
        }))?;
        Ok(Self {
            id,
            shared,
            is_joined: false,
        })
    }

    /// Starts a thread for work in the background: it steps behind other threads.
    pub(crate) fn start_quiet(
        name: &'static CStr,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, Errno> {
        Self::start(name, move || {
            step_behind(true);
            body()
        })
    }

    /// Whether it has its answer.
    pub(crate) fn is_finished(&self) -> bool {
        self.shared.is_finished.load(Ordering::Acquire)
    }

    /// Waits for its end.
    pub(crate) fn join(mut self) -> Answer<T> {
        self.is_joined = true;
        // SAFETY: the thread was started joinable, and is joined once: `self` goes.
        unsafe { libc::pthread_join(self.id, ptr::null_mut()) };
        let answer = self.shared.lock().take();
        answer.unwrap_or_else(|| Err(Box::new("the thread has ended without an answer")))
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Answer<T>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Thread<T> {
    fn drop(&mut self) {
        if !self.is_joined {
            // SAFETY: the thread was started joinable, and nobody joins it any more.
            unsafe { libc::pthread_detach(self.id) };
        }
    }
}

/// Threads that share what `beside` was given.
pub(crate) struct Others {
    threads: Vec<Thread<()>>,
    running: Arc<Running>,
}

impl Others {
    /// When this becomes true the thread that called `beside` is unparked.
    pub(crate) fn are_finished(&self) -> bool {
        self.running.count.load(Ordering::Acquire) == 0
    }

    /// Waits for all, then goes on with a panic that one has ended with.
    fn join(&mut self) -> Option<Box<dyn Any + Send>> {
        let answers = self.threads.drain(..).map(Thread::join);
        answers.fold(None, |panic, answer| panic.or(answer.err()))
    }
}

impl Drop for Others {
    /// Also while `own` unwinds.
    fn drop(&mut self) {
        self.join();
    }
}

/// Runs `work` for each index on a thread of its own, as far as threads can be had,
/// and `own`, once they exist, on this one. Returns when all have ended.
pub(crate) fn beside<T>(
    name: &'static CStr,
    indices: std::ops::Range<usize>,
    work: &(dyn Fn(usize) + Sync),
    own: impl FnOnce(&Others) -> T,
) -> T {
    // SAFETY: only the lifetime changes. The threads that use it are joined before
    // this function returns or unwinds: `others` is a local variable, and dropped.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let running = Arc::new(Running {
        count: AtomicUsize::new(0),
        caller: std::thread::current(),
    });
    let mut others = Others {
        threads: Vec::with_capacity(indices.len()),
        running: Arc::clone(&running),
    };
    for index in indices {
        let ends = Ends::new(&running);
        let body = move || {
            let _ends = ends;
            work(index);
        };
        others.threads.extend(Thread::start(name, body).ok());
    }
    let answer = own(&others);
    if let Some(panic) = others.join() {
        resume_unwind(panic);
    }
    answer
}

/// The threads that have not ended yet, and who waits for them.
struct Running {
    count: AtomicUsize,
    caller: std::thread::Thread,
}

/// Counts a thread that runs until it is dropped.
struct Ends(Arc<Running>);

impl Ends {
    fn new(running: &Arc<Running>) -> Self {
        running.count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(running))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Release) == 1 {
            self.0.caller.unpark();
        }
    }
}

type Body = Box<dyn FnOnce() + Send>;

fn start(body: Body) -> Result<libc::pthread_t, Errno> {
    let argument = Box::into_raw(Box::new(body)).cast::<c_void>();
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut id = MaybeUninit::<libc::pthread_t>::uninit();
    let failure = with_signals_blocked(|| {
        // SAFETY: the attributes are made before they are used, and unmade after;
        // `run` takes the argument over if and only if the thread was made.
        unsafe {
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
            let failure = libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), run, argument);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            failure
        }
    });
    if failure == 0 {
        // SAFETY: pthread_create has written it.
        return Ok(unsafe { id.assume_init() });
    }
    // SAFETY: it comes from Box::into_raw above, and there is no thread that has it.
    drop(unsafe { Box::from_raw(argument.cast::<Body>()) });
    Err(Errno::from_raw_os_error(failure))
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `start` has handed over what Box::into_raw gave it, once.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    body();
    ptr::null_mut()
}

/// Does what `start` does, with all signals blocked: a thread that it starts
/// inherits that, and the program's signals go to the program's own threads.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes the set that pthread_sigmask then reads; the
    // old mask goes to storage of our own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: the call above has written `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Panics without a message on standard error, which would look like a failure.
    fn panic_quietly() -> ! {
        resume_unwind(Box::new("as the test wants"))
    }

    fn of_this_thread(file: &str) -> String {
        std::fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap()
    }

    #[test]
    fn a_thread_answers_and_blocks_every_signal() {
        let look = || (of_this_thread("comm"), of_this_thread("status"));
        let thread = Thread::start_quiet(c"tenure-test", look).unwrap();
        let (name, status) = thread.join().unwrap();
        assert_eq!(name, "tenure-test\n");
        let mut lines = status.lines();
        let blocked = lines.find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal}");
        }
    }

    #[test]
    fn a_panic_is_told_to_who_joins() {
        let thread = Thread::start(c"tenure-test", || panic_quietly()).unwrap();
        let panic = thread.join().unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as the test wants"));
    }

    #[test]
    fn a_dropped_thread_runs_on() {
        let (send, receive) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        drop(Thread::start(c"tenure-test", move || {
            wait.recv().unwrap();
            send.send(7).unwrap();
        }));
        go.send(()).unwrap();
        assert_eq!(receive.recv(), Ok(7));
    }

    #[test]
    fn all_work_is_done_when_beside_returns() {
        let done: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        let work = |index: usize| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            done[index].fetch_add(1, Ordering::Relaxed);
        };
        let finished_early = beside(c"tenure-test", 1..4, &work, Others::are_finished);
        assert!(!finished_early);
        let done: Vec<_> = done.into_iter().map(AtomicUsize::into_inner).collect();
        assert_eq!(done, [0, 1, 1, 1]);
    }

    #[test]
    fn a_panic_of_one_waits_for_the_others() {
        let done = AtomicUsize::new(0);
        let work = |index: usize| {
            if index == 0 {
                panic_quietly();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            done.fetch_add(1, Ordering::Relaxed);
        };
        let all = || beside(c"tenure-test", 0..3, &work, |_| ());
        assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 2);
        let own = || beside(c"tenure-test", 1..3, &work, |_| panic_quietly());
        assert!(catch_unwind(AssertUnwindSafe(own)).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 4);
    }
}
