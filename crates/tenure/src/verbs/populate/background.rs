//! Populating in another thread.

use std::time::Duration;

use super::options::CancelToken;
use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::thread::Thread;

/// A handle to a range that another thread is populating.
///
/// [`wait`](BackgroundPopulate::wait) returns the result.
///
/// Dropping the handle cancels the rest and waits for the chunks in progress, which takes
/// a few milliseconds. Where a page fault stalls, as on a file on FUSE or NFS whose server
/// does not answer, dropping returns after 100 ms, and the thread ends once the fault
/// does. Until then:
///
/// - A [`Mapping`](crate::Mapping) stays mapped, because the thread owns a reference to it.
/// - If a [`PageRange`](crate::PageRange) is unmapped and its addresses are mapped anew,
///   the rest of a chunk, at most one for each worker, is populated in the new mapping.
///   This takes memory and changes no contents. To exclude it,
///   [`cancel`](BackgroundPopulate::cancel) and [`wait`](BackgroundPopulate::wait).
///
/// In a child after fork(2) the thread does not run: a handle there is finished, and
/// dropping it does nothing.
#[derive(Debug)]
#[must_use = "dropping it cancels the populating"]
pub struct BackgroundPopulate {
    cancel: CancelToken,
    thread: Option<Thread<Result<()>>>,
}

/// How long dropping a handle waits: many times as long as a chunk takes.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);

impl BackgroundPopulate {
    pub(super) fn start(
        cancel: &CancelToken,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let failed = |errno| Error::System {
            call: "clone",
            errno,
        };
        let thread = Thread::start(c"tenure-populate", work).map_err(failed)?;
        Ok(Self {
            cancel: cancel.clone(),
            thread: Some(thread),
        })
    }

    /// Cancels the rest of the work; [`wait`](BackgroundPopulate::wait) then
    /// returns [`Error::Cancelled`], unless the whole range was done already.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether [`wait`](BackgroundPopulate::wait) would return at once.
    pub fn is_finished(&self) -> bool {
        let is_finished = |thread: &Thread<_>| thread.is_finished() || thread.is_copy();
        self.thread.as_ref().is_none_or(is_finished)
    }

    /// Waits for the thread and returns its result.
    ///
    /// # Errors
    ///
    /// Those of the populating that was started. In a forked child, [`Error::System`] with
    /// ESRCH if the thread had no result before the fork.
    ///
    /// # Panics
    ///
    /// When the progress callback has panicked.
    pub fn wait(mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        if thread.is_copy() && !thread.is_finished() {
            return Err(Error::System {
                call: "waiting for a thread that runs in the parent process only",
                errno: Errno::SRCH,
            });
        }
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for BackgroundPopulate {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel.cancel();
            // A caller that drops the handle does not want the result.
            let _ = thread.join_within(DROP_TIMEOUT);
        }
    }
}
