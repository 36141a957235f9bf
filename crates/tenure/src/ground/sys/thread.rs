//! tenure's own threads, started with pthread_create.
//!
//! The standard library keeps a list of its threads' stacks under a mutex. A
//! child inherits that mutex locked if another thread was starting or ending at
//! the moment of the fork: then every start of a standard library thread in the
//! child waits for ever. The C library resets its own locks in a child.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::affinity::run_on_process_cpus;
use super::process::{self, Threads, set_batch_scheduling};
use super::{Errno, fork};

/// The stack size of a thread, as large as in the standard library.
const STACK_BYTES: usize = 2 << 20;

/// The outcome of a thread: its value, or the panic that ended it.
pub(crate) type ThreadResult<T> = Result<T, Box<dyn Any + Send>>;

/// A running thread. Dropping the value detaches it. In a forked child the value is a
/// [copy](Thread::is_copy), and the thread does not run.
#[derive(Debug)]
pub(crate) struct Thread<T> {
    id: libc::pthread_t,
    /// The [generation](fork::generation) of the process in which it runs.
    generation: Option<usize>,
    shared: Arc<Shared<T>>,
    is_joined: bool,
}

#[derive(Debug)]
struct Shared<T> {
    /// Set once the thread has released the answer's mutex for the last time.
    is_finished: AtomicBool,
    answer: Mutex<Option<ThreadResult<T>>>,
    is_answered: Condvar,
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread (`pthread_create(3)`) with all signals blocked. It
    /// inherits the CPU affinity of the caller, for whom it works: a caller who
    /// has pinned itself near its memory wants helpers there, and the number of
    /// CPUs that it counts is that of its own affinity. EAGAIN in a fork handler
    /// of a child.
    pub(crate) fn start(
        name: &'static CStr,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, Errno> {
        let generation = fork::generation().ok();
        let shared = Arc::new(Shared {
            is_finished: AtomicBool::new(false),
            answer: Mutex::new(None),
            is_answered: Condvar::new(),
        });
        let for_thread = Arc::clone(&shared);
        let id = start(Box::new(move || {
            // The name is for debuggers and /proc; nothing depends on it.
            let _ = rustix::thread::set_name(name);
            let answer = catch_unwind(AssertUnwindSafe(body));
            *for_thread.lock() = Some(answer);
            for_thread.is_finished.store(true, Ordering::Release);
            for_thread.is_answered.notify_all();
        }))?;
        Ok(Self {
            id,
            generation,
            shared,
            is_joined: false,
        })
    }

    /// Starts a thread for background work, with SCHED_BATCH so that it does
    /// not preempt other threads, on the CPUs of the process: the affinity of
    /// the caller, who may be pinned to one CPU, says nothing about work for
    /// which nobody waits.
    pub(crate) fn start_background(
        name: &'static CStr,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, Errno> {
        Self::start(name, move || {
            run_on_process_cpus();
            set_batch_scheduling(true);
            body()
        })
    }
}

impl<T> Thread<T> {
    /// Returns whether the thread has its result.
    pub(crate) fn is_finished(&self) -> bool {
        self.shared.is_finished.load(Ordering::Acquire)
    }

    /// Returns whether this process is a child that was forked since the thread was
    /// started: the C library reuses the thread's stack and its id here.
    pub(crate) fn is_copy(&self) -> bool {
        self.generation != fork::generation().ok()
    }

    /// Waits until the thread ends, and returns its result. In a forked child it returns
    /// at once.
    pub(crate) fn join(mut self) -> ThreadResult<T> {
        self.is_joined = true;
        let is_copy = self.is_copy();
        if !is_copy {
            // SAFETY: the thread was started joinable, and runs in this process, as
            // `is_copy` tells. This is the only join, because it consumes `self`.
            fork::wait_outside(|| unsafe { libc::pthread_join(self.id, ptr::null_mut()) });
        }
        // A copy of the mutex may have been locked by the thread until it has finished.
        let has_answer = !is_copy || self.is_finished();
        let answer = has_answer.then(|| self.shared.lock().take()).flatten();
        answer.unwrap_or_else(|| Err(Box::new("the thread ended without a result")))
    }

    /// Waits until the thread has its result, for at most `time`, and then joins it;
    /// otherwise detaches it and returns `None`.
    pub(crate) fn join_within(self, time: Duration) -> Option<ThreadResult<T>> {
        let is_answered = self.is_finished()
            || !self.is_copy() && fork::wait_outside(|| self.shared.is_answered_within(time));
        is_answered.then(|| self.join())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ThreadResult<T>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_answered_within(&self, time: Duration) -> bool {
        let is_missing = |answer: &mut Option<_>| answer.is_none();
        let waited = self
            .is_answered
            .wait_timeout_while(self.lock(), time, is_missing);
        let (answer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        answer.is_some()
    }
}

impl<T> Drop for Thread<T> {
    fn drop(&mut self) {
        if !self.is_joined && !self.is_copy() {
            // SAFETY: the thread was started joinable, in this process, as `is_copy`
            // tells, and cannot be joined any more, because `self` is dropped.
            unsafe { libc::pthread_detach(self.id) };
        }
    }
}

/// The threads that [`with_workers`] started.
pub(crate) struct Workers {
    threads: Vec<Thread<()>>,
    running: Arc<Running>,
}

impl Workers {
    /// Returns whether all of them have ended. When the last one ends it
    /// unparks the caller of `with_workers`.
    pub(crate) fn are_finished(&self) -> bool {
        self.running.count.load(Ordering::Acquire) == 0
    }

    /// Waits until all have ended; returns the panic of one, if any.
    fn join(&mut self) -> Option<Box<dyn Any + Send>> {
        let answers = self.threads.drain(..).map(Thread::join);
        answers.fold(None, |panic, answer| panic.or(answer.err()))
    }
}

impl Drop for Workers {
    /// Joins the threads, also while `own` unwinds.
    fn drop(&mut self) {
        self.join();
    }
}

/// Runs `work` for each index on a thread of its own, as far as threads can be
/// created (in a fork handler: on none), and `own`, once they exist, on the
/// calling thread. Returns when all have ended.
pub(crate) fn with_workers<T>(
    name: &'static CStr,
    indices: std::ops::Range<usize>,
    work: &(dyn Fn(usize) + Sync),
    own: impl FnOnce(&Workers) -> T,
) -> T {
    // SAFETY: this extends the lifetime only. The threads that use it are
    // joined before this function returns or unwinds, because `workers` is a
    // local variable that joins them when dropped.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let running = Arc::new(Running {
        count: AtomicUsize::new(0),
        caller: std::thread::current(),
    });
    let mut workers = Workers {
        threads: Vec::with_capacity(indices.len()),
        running: Arc::clone(&running),
    };
    let may_wait = !fork::is_in_handler();
    for index in indices.filter(|_| may_wait) {
        let ends = Ends::new(&running);
        let body = move || {
            let _ends = ends;
            work(index);
        };
        workers.threads.extend(Thread::start(name, body).ok());
    }
    let answer = own(&workers);
    if let Some(panic) = workers.join() {
        resume_unwind(panic);
    }
    answer
}

/// The number of threads that have not ended yet, and the thread that waits for
/// them.
struct Running {
    count: AtomicUsize,
    caller: std::thread::Thread,
}

/// Counts one thread as running until it is dropped.
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
    if fork::is_in_child_handler() {
        return Err(Errno::AGAIN);
    }
    let argument = Box::into_raw(Box::new(body)).cast::<c_void>();
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut id = MaybeUninit::<libc::pthread_t>::uninit();
    let failure = with_signals_blocked(|| {
        // SAFETY: the attributes are initialized before their use and destroyed
        // after it; `run` takes ownership of the argument if and only if the
        // thread was created.
        unsafe {
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
            let failure = libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), run, argument);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            failure
        }
    });
    if failure == 0 {
        // SAFETY: pthread_create succeeded, so it has written the id.
        return Ok(unsafe { id.assume_init() });
    }
    // SAFETY: the pointer comes from Box::into_raw above, and no thread was
    // created that would own it.
    drop(unsafe { Box::from_raw(argument.cast::<Body>()) });
    Err(Errno::from_raw_os_error(failure))
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let _own = Own::new();
    // SAFETY: `start` passes a pointer from Box::into_raw, to this one call.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    body();
    ptr::null_mut()
}

/// How many threads of tenure's run (16 bits), the [generation](fork::generation) of the
/// process in which they run (16 bits), and how often the count has changed (32 bits).
static OWN: AtomicU64 = AtomicU64::new(0);

const COUNT_BITS: u32 = 16;
const CHANGE: u64 = 1 << 32;

/// Counts the calling thread as tenure's until it is dropped. The count never exceeds the
/// number of threads that exist: only they change it.
struct Own(Option<u64>);

impl Own {
    fn new() -> Self {
        let generation = fork::generation().ok().map(generation_bits);
        if let Some(generation) = generation {
            let count = |own| count_in(own, generation).unwrap_or(0);
            let changes = |own: u64| (own & !(CHANGE - 1)).wrapping_add(CHANGE);
            let add = |own| Some(changes(own) | generation | (count(own) + 1));
            let _ = OWN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        }
        Self(generation)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.0.is_some() {
            OWN.fetch_add(CHANGE - 1, Ordering::SeqCst);
        }
    }
}

fn generation_bits(generation: usize) -> u64 {
    u64::from(generation as u16) << COUNT_BITS
}

/// Returns the count; `None` in a child that was forked since.
fn count_in(own: u64, generation: u64) -> Option<u64> {
    let (bits, mask) = (own & (CHANGE - 1), (1 << COUNT_BITS) - 1);
    (bits & !mask == generation).then_some(bits & mask)
}

/// Returns whether the program's own threads have all ended: the first by pthread_exit(3),
/// which leaves it as a zombie, the others in any way. The caller is a thread of tenure's.
pub(crate) fn only_own_are_left() -> bool {
    let own = OWN.load(Ordering::SeqCst);
    let generation = fork::generation().ok().map(generation_bits);
    let Some(own_count) = generation.and_then(|generation| count_in(own, generation)) else {
        return false;
    };
    let is_over = |threads: Threads| threads.is_first_ended && threads.count == own_count + 1;
    // A thread of tenure's that has ended in between was one of the program's otherwise.
    process::threads().is_ok_and(is_over) && OWN.load(Ordering::SeqCst) == own
}

/// Calls `start` with all signals blocked: a thread that it creates inherits
/// the mask, so that the program's signals go to the program's own threads.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initializes the set that pthread_sigmask reads;
    // pthread_sigmask writes the old mask to `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: pthread_sigmask has written `before` above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Panics without a message on standard error, which would look like a test
    /// failure.
    fn panic_quietly() -> ! {
        resume_unwind(Box::new("as the test wants"))
    }

    fn of_this_thread(file: &str) -> String {
        std::fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap()
    }

    #[test]
    fn thread_returns_value_and_blocks_all_signals() {
        let describe = || (of_this_thread("comm"), of_this_thread("status"));
        let thread = Thread::start_background(c"tenure-test", describe).unwrap();
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
    fn thread_panic_is_returned_by_join() {
        let thread = Thread::start(c"tenure-test", || panic_quietly()).unwrap();
        let panic = thread.join().unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as the test wants"));
    }

    #[test]
    fn thread_dropped_runs_on() {
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
    fn join_within_of_blocked_thread_detaches_it() {
        let (go, wait) = mpsc::channel::<()>();
        let (send, receive) = mpsc::channel();
        let blocked = Thread::start(c"tenure-test", move || {
            wait.recv().unwrap();
            send.send(7).unwrap();
        });
        let answer = blocked.unwrap().join_within(Duration::from_millis(1));
        assert!(answer.is_none());
        go.send(()).unwrap();
        assert_eq!(receive.recv(), Ok(7));
        let free = Thread::start(c"tenure-test", || 8).unwrap();
        let answer = free.join_within(Duration::from_secs(60));
        assert_eq!(answer.unwrap().unwrap(), 8);
    }

    #[test]
    fn with_workers_returns_after_all_work() {
        let done: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        let work = |index: usize| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            done[index].fetch_add(1, Ordering::Relaxed);
        };
        let finished_early = with_workers(c"tenure-test", 1..4, &work, Workers::are_finished);
        assert!(!finished_early);
        let done: Vec<_> = done.into_iter().map(AtomicUsize::into_inner).collect();
        assert_eq!(done, [0, 1, 1, 1]);
    }

    #[test]
    fn with_workers_waits_for_all_after_a_panic() {
        let done = AtomicUsize::new(0);
        let work = |index: usize| {
            if index == 0 {
                panic_quietly();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            done.fetch_add(1, Ordering::Relaxed);
        };
        let all = || with_workers(c"tenure-test", 0..3, &work, |_| ());
        assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 2);
        let own = || with_workers(c"tenure-test", 1..3, &work, |_| panic_quietly());
        assert!(catch_unwind(AssertUnwindSafe(own)).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 4);
    }
}
