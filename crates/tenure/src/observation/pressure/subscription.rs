//! Being told when the level changes.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Level, watcher};
use crate::ground::error::{Error, Result};
use crate::ground::sys::fork;

/// Has `notify` called at each change of the [level](super::level), until the
/// value that is returned is dropped.
///
/// A thread watches (`tenure-pressure`, all signals blocked), one for all
/// subscriptions, and `notify` runs on it: what takes long keeps the others
/// waiting. If there is pressure already, the first call comes within half a
/// second. The thread sleeps until the kernel reports something (PSI triggers,
/// `memory.events`), looks every five seconds besides, more often where there is
/// little room or the kernel does not report, and ends a few seconds after the
/// last subscription.
///
/// If `notify` panics, it is not called again; others are.
///
/// After `fork` the child has no watcher: the subscriptions of its parent do
/// nothing there, and it may subscribe itself.
///
/// # Errors
///
/// [`Error::System`] when `/proc/meminfo` cannot be read, or there is no room
/// for a thread.
///
/// ```
/// use tenure::pressure::{self, Level};
///
/// let subscription = pressure::subscribe(|level| {
///     if level == Level::Severe {
///         // Drop what can be had again.
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

/// Has the function given to [`subscribe`] called as long as it lives.
///
/// Dropping it waits for a call that is running, unless that call drops it.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    subscriber: Arc<Subscriber>,
    /// The process that the watcher is in.
    generation: usize,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A child's copy is none; its mutex may be held for ever.
        if fork::generation() != Ok(self.generation) {
            return;
        }
        let entry = watcher::remove(&self.subscriber);
        if !self.subscriber.is_calling() {
            // Dropped here, after the mutex is given up: it may hold anything.
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

/// Who is to be told.
pub(super) struct Subscriber {
    /// None when it has ended. Held during a call.
    notify: Mutex<Option<Notify>>,
}

thread_local! {
    /// Which subscriber this thread is calling.
    static CALLING: Cell<*const Subscriber> = const { Cell::new(ptr::null()) };
}

impl Subscriber {
    /// Returns whether it wants to be told again.
    pub(super) fn tell(&self, level: Level) -> bool {
        let mut notify = self.lock();
        let Some(call) = notify.as_mut() else {
            return false;
        };
        CALLING.set(self);
        // Nobody sees what it left half done: it is not called again.
        let answer = catch_unwind(AssertUnwindSafe(|| call(level)));
        CALLING.set(ptr::null());
        answer.is_ok()
    }

    /// Whether this is the thread, and the moment, of a call.
    fn is_calling(&self) -> bool {
        ptr::eq(CALLING.get(), self)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Notify>> {
        self.notify.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
