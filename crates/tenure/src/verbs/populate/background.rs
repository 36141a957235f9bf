//! Populating behind the caller's back.

use super::options::CancelToken;
use crate::ground::error::{Error, Result};
use crate::ground::sys::thread::Thread;

/// Populating that goes on in another thread.
///
/// [`wait`](BackgroundPopulate::wait) tells how it ended. Dropping the handle
/// cancels what is left and waits for the thread, a few milliseconds.
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

    /// Ends the populating early; [`wait`](BackgroundPopulate::wait) then says
    /// [`Error::Cancelled`], unless all was done already.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether [`wait`](BackgroundPopulate::wait) would return at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits for the end and tells how it was.
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
            Some(Ok(answer)) => answer,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for BackgroundPopulate {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel.cancel();
            // Whoever drops the handle does not ask for the answer.
            let _ = thread.join();
        }
    }
}
