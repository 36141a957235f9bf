//! The options of [`warm`](super::warm).

use std::fmt;
use std::time::Duration;

/// Options of [`warm`](super::warm).
#[derive(Default)]
pub struct WarmOptions {
    pub(super) budget_bytes: Option<u64>,
    pub(super) readers: Option<usize>,
    pub(super) progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
}

/// How far [`warm`](super::warm) has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Read so far.
    pub read_bytes: u64,
    /// Since the begin.
    pub elapsed: Duration,
}

impl WarmOptions {
    /// No budget, as many readers as help, no progress.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads at most so many bytes, rounded down to whole pages.
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = Some(bytes);
        self
    }

    /// Reads with so many threads, in place of as many as raise the rate.
    pub fn readers(mut self, count: usize) -> Self {
        self.readers = Some(count);
        self
    }

    /// Calls `progress` about twenty times a second, on the thread that called
    /// [`warm`](super::warm).
    pub fn progress(mut self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }
}

impl fmt::Debug for WarmOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmOptions")
            .field("budget_bytes", &self.budget_bytes)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}
