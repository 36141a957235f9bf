//! Subscriptions to changes of the level.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Level, watcher};
use crate::ground::error::{Error, Result};
use crate::ground::sys::fork;

/// Calls `notify` at each change of the [level](super::level), until the
/// returned value is dropped.
///
/// One thread (`tenure-pressure`, with all signals blocked) serves all
/// subscriptions, and `notify` runs on it: a slow one delays the others. If
/// there is pressure already, the first call comes within half a second. The
/// thread sleeps until the kernel reports an event (PSI triggers,
/// `memory.events`). It also takes a reading every five seconds, more often
/// where headroom is low or the kernel reports nothing, and ends a few seconds
/// after the last subscription.
///
/// If `notify` panics, it is not called again; other subscriptions continue.
///
/// After `fork` the child has no watcher: the parent's subscriptions do nothing
/// there, and the child may subscribe itself.
///
/// # Errors
///
/// [`Error::System`] when `/proc/meminfo` cannot be read, or no thread can be
/// created.
///
/// ```
/// use tenure::pressure::{self, Level};
///
/// let subscription = pressure::subscribe(|level| {
///     if level == Level::Severe {
///         // Drop everything that can be computed again.
///     }
/// })?;
/// # drop(subscription);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn subscribe(notify: impl FnMut(Level) + Send + 'static) -> Result<Subscription> {
    let generation = fork::generation().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    let subscriber = Arc::new(Subscriber {
        notify: Mutex::new(Some(Box::new(notify))),
    });
    watcher::add(Arc::clone(&subscriber))?;
    Ok(Subscription {
        subscriber,
        generation,
    })
}

/// A subscription: the function given to [`subscribe`] is called as long as
/// this value lives.
///
/// Dropping it waits for a running call, unless that call drops it.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    subscriber: Arc<Subscriber>,
    /// The fork generation of the process that the watcher runs in.
    generation: usize,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a child the copy has no effect, and its mutex may be locked for
        // ever.
        if fork::generation() != Ok(self.generation) {
            return;
        }
        let entry = watcher::remove(&self.subscriber);
        if !self.subscriber.is_calling() {
            // Dropped after the mutex is unlocked, because it may own anything.
            let notify = self.subscriber.lock().take();
            drop(notify);
        }
        drop(entry);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

type Notify = Box<dyn FnMut(Level) + Send>;

/// A subscriber, shared with the watcher.
pub(super) struct Subscriber {
    /// `None` when the subscription has ended. Locked during a call.
    notify: Mutex<Option<Notify>>,
}

thread_local! {
    /// The subscriber that this thread is calling.
    static CALLING: Cell<*const Subscriber> = const { Cell::new(ptr::null()) };
}

impl Subscriber {
    /// Calls the subscriber's function. Returns whether to call it again.
    pub(super) fn notify(&self, level: Level) -> bool {
        let mut notify = self.lock();
        let Some(call) = notify.as_mut() else {
            return false;
        };
        CALLING.set(self);
        // Unwind safety: it is not called again, so nothing observes a state
        // that it left half changed.
        let answer = catch_unwind(AssertUnwindSafe(|| call(level)));
        CALLING.set(ptr::null());
        answer.is_ok()
    }

    /// Returns whether this thread is in a call of this subscriber.
    fn is_calling(&self) -> bool {
        ptr::eq(CALLING.get(), self)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Notify>> {
        fork::lock_outer(&self.notify)
    }
}
