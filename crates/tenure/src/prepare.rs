//! Initialization of the verbs' process-wide state, ahead of their first use.

use crate::background::freeing;
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::ground::sys::features::Features;
use crate::ground::sys::{fork, split};
use crate::observation::{pressure, stats};
use crate::ready::secret;
use crate::verbs::{lazy_free, lock, teardown, volatile};

/// Initializes now what the verbs would initialize at their first use: fork
/// handlers (`pthread_atfork(3)`), the page of counters, and the answers of
/// [`Features::get`]. It takes less than a millisecond, starts no thread and
/// keeps no descriptor. Calling it again does nothing.
///
/// Call it, before the first thread starts, in programs that fork while other
/// threads may be in their first call of a verb: the child would inherit that
/// initialization half done, and wait for ever when it calls a verb itself.
///
/// ```
/// tenure::prepare();
/// ```
pub fn prepare() {
    stats::begin();
    Features::get();
    // If registration fails now (ENOMEM), the first user retries it.
    let _ = fork::generation();
    split::prepare();
    pressure::prepare();
    freeing::prepare();
    lazy_free::prepare();
    lock::prepare();
    volatile::prepare();
    teardown::prepare();
    secret::prepare();
    flush_lazyfree_batch();
}
