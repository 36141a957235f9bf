//! Populating in another thread.

use super::options::CancelToken;
use crate::ground::error::{Error, Result};
use crate::ground::sys::thread::Thread;

/// A handle to a range that another thread is populating.
///
/// [`wait`](BackgroundPopulate::wait) returns the result. Dropping the handle
/// cancels the rest and waits for the thread, which takes a few milliseconds.
#[derive(Debug)]
#[must_use = "dropping it cancels the populating"]
pub struct BackgroundPopulate {
    cancel: CancelToken,
    thread: Option<Thread<Result<()>>>,
}

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
        self.thread.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits for the thread and returns its result.
    ///
    /// # Errors
    ///
    /// Those of the populating that was started.
    ///
    /// # Panics
    ///
    /// When the progress callback has panicked.
    pub fn wait(mut self) -> Result<()> {
        match self.thread.take().map(Thread::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for BackgroundPopulate {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel.cancel();
            // A caller that drops the handle does not want the result.
            let _ = thread.join();
        }
    }
}
