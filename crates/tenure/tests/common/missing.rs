//! Memory whose page faults wait until a test answers them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use libtest_mimic::Completion;
use linux_raw_sys::general::{
    UFFD_EVENT_PAGEFAULT, UFFD_FEATURE_THREAD_ID, uffd_msg, uffdio_range, uffdio_zeropage,
};
use linux_raw_sys::ioctl::UFFDIO_ZEROPAGE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tenure::{Features, PageRange, page_size};

use super::{anonymous, register_with_flags, skip};

/// A range in which each fault of a missing page waits for [`answer`](Missing::answer).
/// Dropping this ends that.
pub struct Missing(OwnedFd);

/// A thread that waits for a page.
pub struct Fault {
    addr: u64,
    /// The thread's number.
    pub thread: u32,
}

impl Missing {
    /// Registers the range; `None` where this process may not stop faults in system calls
    /// (that needs CAP_SYS_PTRACE or vm.unprivileged_userfaultfd).
    pub fn register(range: PageRange) -> Option<Self> {
        let events = register_with_flags(range, 0, UFFD_FEATURE_THREAD_ID.into()).ok()?;
        rustix::io::ioctl_fionbio(&events, true).unwrap();
        Some(Self(events))
    }

    /// Whether populating can be stopped at a page; otherwise why the test is skipped.
    pub fn can_stall_populate() -> Result<(), Completion> {
        if Features::get().madv_populate.is_err() {
            // Without it, populating reads or writes by a system call that does not wait for
            // the owner of a page, and fails.
            return Err(skip("needs MADV_POPULATE (Linux 5.14)"));
        }
        match Self::register(anonymous(1).range()) {
            Some(_) => Ok(()),
            None => Err(skip(
                "needs CAP_SYS_PTRACE to stop page faults in system calls",
            )),
        }
    }

    /// Returns the next fault, if there is one within the time.
    pub fn next_within(&self, time: Duration) -> Option<Fault> {
        let time = Timespec::try_from(time).unwrap();
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time)).unwrap();
        let mut message = [0; size_of::<uffd_msg>()];
        let len = rustix::io::read(&self.0, &mut message).ok()?;
        assert_eq!(
            (len, u32::from(message[0])),
            (message.len(), UFFD_EVENT_PAGEFAULT)
        );
        let number = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap());
        Some(Fault {
            addr: number(16) & !(page_size() as u64 - 1),
            thread: number(24) as u32,
        })
    }

    /// Fills the page with zeros, and lets the thread continue.
    pub fn answer(&self, fault: &Fault) {
        let mut zeros = uffdio_zeropage {
            range: uffdio_range {
                start: fault.addr,
                len: page_size() as u64,
            },
            mode: 0,
            zeropage: 0,
        };
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_ZEROPAGE.into(), &mut zeros) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }
}
