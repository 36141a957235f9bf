//! Initialization of the verbs' process-wide state, ahead of their first use.

use crate::background::{freeing, pool};
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::ground::sys::features::Features;
use crate::ground::sys::split;
use crate::observation::{headroom, pressure, stats};
use crate::verbs::{lazy_free, lock, teardown, volatile};

/// Initializes now what the verbs would initialize at their first use: the page of
/// counters, the answers of [`Features::get`], and a first reading of the memory limits
/// ([`headroom`]). It takes less than a millisecond,
/// starts no thread and keeps no descriptor. Calling it again does nothing.
///
/// A program calls it when the first call of a verb must not take longer than later ones.
/// Programs that fork while other threads are in their first calls need not: tenure
/// registers its fork handlers (`pthread_atfork(3)`) when the program, or the shared
/// library that contains tenure, is loaded.
///
/// ```
/// tenure::prepare();
/// ```
pub fn prepare() {
    register_fork_handlers();
    stats::prepare();
    Features::get();
    headroom::prepare();
    freeing::prepare();
    flush_lazyfree_batch();
}

/// Runs before `main`, where no other thread can be forking: glibc runs a handler only in
/// forks that begin after its registration, so a thread that registered one and then took
/// the mutex in the middle of another thread's fork would leave the child with a mutex
/// that nobody releases.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register_fork_handlers;

/// Makes system calls at most: the allocator may not be ready when this runs.
extern "C" fn register_fork_handlers() {
    // If a registration fails (ENOMEM), the first call that needs it tries it again.
    let _ = split::register_fork_handlers();
    let _ = pressure::register_fork_handlers();
    let _ = headroom::register_fork_handlers();
    let _ = freeing::register_fork_handlers();
    let _ = pool::register_fork_handlers();
    let _ = lazy_free::register_fork_handlers();
    let _ = lock::register_fork_handlers();
    let _ = volatile::register_fork_handlers();
    let _ = teardown::register_fork_handlers();
}
