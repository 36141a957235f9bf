//! What the verbs make at their first use, made beforehand.

use crate::background::freeing;
use crate::ground::sys::advise::finish_batch;
use crate::ground::sys::features::Features;
use crate::ground::sys::{fork, split};
use crate::observation::{pressure, stats};
use crate::ready::secret;
use crate::verbs::{lazy_free, lock, teardown, volatile};

/// Makes now what the verbs would make at their first use: fork handlers, the
/// page of counters, and the answers of [`Features::get`]. It takes less than a
/// millisecond, starts no thread and keeps no descriptor. Calling it again does
/// nothing.
///
/// For programs that fork while other threads may be at their first call of a
/// verb: the child would find it half done, and wait for ever when it calls one
/// itself. To be called before the first thread is started.
///
/// ```
/// tenure::prepare();
/// ```
pub fn prepare() {
    stats::begin();
    Features::get();
    // What is refused now (ENOMEM) is asked for again by who needs it.
    let _ = fork::generation();
    split::prepare();
    pressure::prepare();
    freeing::prepare();
    lazy_free::prepare();
    lock::prepare();
    volatile::prepare();
    teardown::prepare();
    secret::prepare();
    finish_batch();
}
