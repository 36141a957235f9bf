//! Fork handlers (`pthread_atfork(3)`), and mutexes that are consistent in the
//! child.
//!
//! The forking thread takes every [`ForkMutex`] in its prepare handler, so that
//! no other thread is in the middle of a change when the child copies, and
//! releases them in the parent and in the child. Handlers that other code
//! registered before tenure's run in between, in all three phases, and may call
//! tenure: the forking thread may therefore lock each mutex again.
//!
//! In the child such a handler runs before tenure's. The first lock there makes
//! the child's changes of all mutexes ([`start_child`]).

mod heap_lock;
mod mutex;

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

pub use self::heap_lock::HeapLock;
pub(crate) use self::mutex::{ForkGuard, ForkMutex};

use self::mutex::AcrossFork;
use super::advise::{DestructiveAdvice, advise_destructive};
use super::map::{self, Backing};
use super::{counters, exclusive, page_size};

/// A mutex in the list of those that the forking thread takes.
pub(crate) struct Entry {
    mutex: &'static dyn AcrossFork,
    is_listed: AtomicBool,
    next: AtomicPtr<Entry>,
}

impl Entry {
    pub(crate) const fn new(mutex: &'static dyn AcrossFork) -> Self {
        Self {
            mutex,
            is_listed: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// Calls `visit` for each mutex in the list.
fn for_each(visit: impl Fn(&'static dyn AcrossFork)) {
    let mut next = ENTRIES.load(Ordering::Acquire);
    // SAFETY: `register` stores pointers to statics only.
    while let Some(entry) = unsafe { next.as_ref() } {
        visit(entry.mutex);
        next = entry.next.load(Ordering::Relaxed);
    }
}

/// Has every later fork take the mutex and make its change in the child.
///
/// Each mutex is registered before `main`; this is called again where a failure
/// (ENOMEM) matters.
pub(crate) fn register(entry: &'static Entry) -> Result<(), Errno> {
    if !entry.is_listed.swap(true, Ordering::Relaxed) {
        let mut first = ENTRIES.load(Ordering::Relaxed);
        loop {
            entry.next.store(first, Ordering::Relaxed);
            let new = ptr::from_ref(entry).cast_mut();
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            match ENTRIES.compare_exchange(first, new, success, failure) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
    }
    register_handlers()
}

/// Registers the handlers, unless that has been done. Two threads may both
/// register them: the handlers tolerate two calls around a fork.
#[inline]
fn register_handlers() -> Result<(), Errno> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    match IS_REGISTERED.load(Ordering::Acquire) {
        true => Ok(()),
        false => register_first(&IS_REGISTERED),
    }
}

#[cold]
fn register_first(is_registered: &AtomicBool) -> Result<(), Errno> {
    map_sentinel()?;
    // SAFETY: the functions stay loaded as long as they are registered:
    // glibc removes the registrations of a shared object when it is closed.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) } {
        0 => is_registered.store(true, Ordering::Release),
        errno => return Err(Errno::from_raw_os_error(errno)),
    }
    Ok(())
}

/// The thread that holds all mutexes across a fork, by [`thread_number`], or 0.
static HOLDER: AtomicUsize = AtomicUsize::new(0);

/// How many forks that thread is in: a handler may itself fork.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// Whether that thread is in a child, in which the handlers still run.
static IS_STARTING_CHILD: AtomicBool = AtomicBool::new(false);

/// Taken before all other mutexes, also by threads that then lock another.
static FORK_BLOCK: ForkMutex<()> = ForkMutex::new((), |()| ());

/// Makes forks of this process wait until the returned guard is dropped.
pub(crate) fn block_forks() -> Result<ForkGuard<()>, Errno> {
    register_handlers()?;
    Ok(FORK_BLOCK.lock())
}

/// As [`block_forks`], for a thread that a fork handler of the program may wait for: `None`
/// while a fork is under way, or if other threads block forks for milliseconds.
pub(crate) fn block_forks_unless_forking() -> Option<ForkGuard<()>> {
    const PAUSE: Duration = Duration::from_micros(20);
    const MAX_PAUSES: usize = 100;
    register_handlers().ok()?;
    for _ in 0..MAX_PAUSES {
        if let Some(guard) = FORK_BLOCK.try_lock() {
            return Some(guard);
        }
        if HOLDER.load(Ordering::Relaxed) != 0 {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// Returns a number for this thread, which it keeps in the child: the address
/// of a thread-local variable.
fn thread_number() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| ptr::from_ref(here).addr())
}

/// Returns whether this thread holds all mutexes across a fork. If it is in the
/// child, the child's changes are made before this returns.
#[inline]
fn is_holder() -> bool {
    // Only this thread writes its own number.
    let holder = HOLDER.load(Ordering::Relaxed);
    let is_holder = holder != 0 && holder == thread_number();
    if is_holder {
        start_child();
    }
    is_holder
}

unsafe extern "C" fn prepare() {
    if is_holder() {
        DEPTH.fetch_add(1, Ordering::Relaxed);
        return;
    }
    FORK_BLOCK.hold();
    for_each(|mutex| mutex.hold());
    exclusive::note_fork();
    DEPTH.store(1, Ordering::Relaxed);
    HOLDER.store(thread_number(), Ordering::Relaxed);
    publish_generation();
}

unsafe extern "C" fn in_parent() {
    // Not the holder: registered twice, or in the middle of the fork.
    if !is_holder() || DEPTH.fetch_sub(1, Ordering::Relaxed) > 1 {
        return;
    }
    IS_STARTING_CHILD.store(false, Ordering::Relaxed);
    HOLDER.store(0, Ordering::Relaxed);
    publish_generation();
    for_each(|mutex| mutex.let_go());
    FORK_BLOCK.let_go();
}

unsafe extern "C" fn in_child() {
    // The kernel does not wipe the substitute of the page.
    FALLBACK.store(0, Ordering::Relaxed);
    start_child();
    // SAFETY: the handler for the parent has no preconditions.
    unsafe { in_parent() };
}

/// A word that is 1, and 0 in a child until [`start_child`] has run there: in a
/// page that the kernel wipes on fork. Process ids cannot serve, because parent
/// and child may both be number 1, of two namespaces; nor can thread-local
/// variables, which the child inherits.
static SENTINEL: AtomicPtr<AtomicUsize> = AtomicPtr::new((&raw const FALLBACK).cast_mut());

/// The word where the kernel wipes no pages (before Linux 4.14): there the
/// changes are made by tenure's handler and not before.
static FALLBACK: AtomicUsize = AtomicUsize::new(1);

fn sentinel() -> &'static AtomicUsize {
    // SAFETY: the pointer refers to a static, or to a page that is never
    // unmapped and that children of fork have, too.
    unsafe { &*SENTINEL.load(Ordering::Acquire) }
}

fn map_sentinel() -> Result<(), Errno> {
    if !ptr::eq(sentinel(), &FALLBACK) {
        return Ok(());
    }
    let page = map::map(Backing::Anonymous, page_size(), false, true)?;
    // SAFETY: mapped above, so nothing relies on its contents.
    let is_wiped = unsafe { advise_destructive(page, DestructiveAdvice::WipeOnFork) }.is_ok();
    let word = page.as_ptr().cast::<AtomicUsize>();
    // SAFETY: the page has just been mapped for reading and writing.
    unsafe { &*word }.store(1, Ordering::Relaxed);
    let fallback = (&raw const FALLBACK).cast_mut();
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    let replaced = |()| SENTINEL.compare_exchange(fallback, word, success, failure);
    if is_wiped
        .then_some(())
        .map(replaced)
        .is_none_or(|it| it.is_err())
    {
        // SAFETY: mapped above, and no other code knows the address.
        let _ = unsafe { map::unmap(page) };
    }
    Ok(())
}

/// How often this process's line of ancestors has forked.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Makes the changes of all modules, if this is a child in which that has not
/// been done. Makes system calls at most: neither allocates nor frees.
fn start_child() {
    if sentinel().swap(1, Ordering::Relaxed) == 1 {
        return;
    }
    IS_STARTING_CHILD.store(true, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    publish_generation();
    // First, because the modules set the gauges among the counters anew.
    counters::zero_in_child();
    for_each(|mutex| mutex.start_child());
}

/// The generation, or [`FORKING`] while a thread is between its fork handlers: then this may be
/// a child in which none of tenure's has run yet.
static CURRENT: AtomicUsize = AtomicUsize::new(0);

/// No process has forked so often.
const FORKING: usize = usize::MAX - 1;

/// Called by the thread that has changed the generation, or the holder.
fn publish_generation() {
    let current = match HOLDER.load(Ordering::Relaxed) {
        0 => GENERATION.load(Ordering::Relaxed),
        _ => FORKING,
    };
    CURRENT.store(current, Ordering::Relaxed);
}

/// Whether this is still the [`generation`] that a caller has stored, at the cost of a load;
/// `false` as well while a fork is under way.
#[inline]
pub(crate) fn is_current(stored: usize) -> bool {
    CURRENT.load(Ordering::Relaxed) == stored
}

/// Returns a number that differs in each child forked from now on: code that
/// stores it can tell later whether it runs in a copy.
#[inline]
pub(crate) fn generation() -> Result<usize, Errno> {
    register_handlers()?;
    is_holder();
    Ok(GENERATION.load(Ordering::Relaxed))
}

/// Returns whether this process was made by a bare `clone` system call, which runs no fork
/// handlers: it has the number of its parent's [`generation`].
pub(crate) fn is_bare_child() -> bool {
    is_holder();
    is_unprepared_child()
}

/// Returns whether none of tenure's fork handlers has run in this child: a bare one, or one whose
/// other handlers run first.
pub(super) fn is_unprepared_child() -> bool {
    sentinel().load(Ordering::Relaxed) == 0
}

/// Makes the child's changes in a fork handler of a child that runs before tenure's: what
/// reads the state of volatile memory without a [`ForkMutex`] calls it first.
pub(crate) fn start_child_in_handler() {
    is_holder();
}

/// Returns whether this thread is in a fork handler of a child. No thread may
/// be started there: the handlers of an allocator may have to run first.
pub(crate) fn is_in_child_handler() -> bool {
    is_holder() && IS_STARTING_CHILD.load(Ordering::Relaxed)
}

/// Returns whether this thread is in a fork handler. It must not wait for new
/// threads there: it may hold an allocator's lock.
pub(crate) fn is_in_handler() -> bool {
    is_holder()
}

/// Waits for threads that may wait for a [`ForkMutex`]. The forking thread
/// releases those meanwhile, and holds them again afterwards.
pub(crate) fn wait_outside<T>(wait: impl FnOnce() -> T) -> T {
    let is_holder = is_holder();
    if is_holder {
        for_each(|mutex| mutex.let_go());
    }
    let answer = wait();
    if is_holder {
        for_each(|mutex| mutex.hold());
    }
    answer
}

/// Locks a mutex whose holders may wait for a [`ForkMutex`].
pub(crate) fn lock_outer<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    wait_outside(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}
