//! Workers that stop in the middle of a free until a test lets them continue, so that what is
//! pending stays pending.

use std::os::fd::OwnedFd;

use linux_raw_sys::general::{
    UFFD_EVENT_REMAP, UFFD_FEATURE_EVENT_REMAP, UFFD_FEATURE_EVENT_REMOVE, uffd_msg,
};
use tenure::release::ReleaseLimits;
use tenure::{Mapping, page_size};

use super::{anonymous, drain_pending, fill, register_with_features};

/// The only worker, which waits for as long as this exists.
pub struct Stall(Option<OwnedFd>);

impl Stall {
    /// The bytes that it keeps pending.
    pub const BYTES: usize = 8 << 20;

    /// Allows one worker, and releases memory that this worker cannot free: a userfaultfd
    /// announces that its pages go away, and the kernel waits until the announcement is
    /// read. Panics where the release is not deferred.
    pub fn begin() -> Self {
        ReleaseLimits::default().max_active(1).set();
        let memory: Mapping = anonymous(Self::BYTES / page_size());
        fill(memory.range());
        let features = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
        let events = register_with_features(memory.range(), features.into());
        rustix::io::ioctl_fionbio(&events, true).unwrap();
        let release = std::thread::spawn(|| memory.munmap().unwrap());
        let mut event = [0; size_of::<uffd_msg>()];
        // The thread that moves memory waits until that is read.
        while rustix::io::read(&events, &mut event) != Ok(event.len()) {
            assert!(!release.is_finished(), "the release is not deferred");
            std::thread::yield_now();
        }
        assert_eq!(u32::from(event[0]), UFFD_EVENT_REMAP);
        release.join().unwrap();
        Self(Some(events))
    }

    /// Lets the worker continue.
    pub fn end(mut self) {
        drop(self.0.take());
        drain_pending();
    }
}
