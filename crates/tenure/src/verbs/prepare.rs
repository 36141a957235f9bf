//! What the verbs make at their first use, made beforehand.

use super::{lazy_free, lock, volatile};
use crate::background::freeing;
use crate::ground::sys::advise::finish_batch;
use crate::ground::sys::features::Features;
use crate::ground::sys::fork;
use crate::observation::{pressure, stats};

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
    pressure::prepare();
    freeing::prepare();
    lazy_free::prepare();
    lock::prepare();
    volatile::prepare();
    finish_batch();
}
