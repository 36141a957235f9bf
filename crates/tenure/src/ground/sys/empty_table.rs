//! Threads with an empty descriptor table of their own: for a process that has no descriptor
//! left, and where a program that closes all descriptors must not close tenure's.

use rustix::io::Errno;

use super::fork;
use super::private_files::close_range;
use super::thread::Thread;

/// Runs `work` on a thread whose descriptor table is empty, and returns its result:
/// `close_range(2)` with CLOSE_RANGE_UNSHARE (Linux 5.9). The process's descriptors are
/// neither copied nor closed.
///
/// Fails with the kernel's error where no such thread can be made, and with EAGAIN in a fork
/// handler, which waits for no thread.
pub(crate) fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Errno> {
    if fork::is_in_handler() {
        return Err(Errno::AGAIN);
    }
    let in_own_table = || {
        enter()?;
        Ok(work())
    };
    match Thread::start(c"tenure-limits", in_own_table)?.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Gives the calling thread an empty descriptor table of its own, for the rest of its life, as
/// do the threads that it starts. It must be one of tenure's that runs no code of the program,
/// and holds no descriptor.
pub(crate) fn enter() -> Result<(), Errno> {
    close_range(0, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn run_opens_files_without_touching_the_descriptors_of_the_process() {
        let own = File::open("/proc/self/stat").unwrap();
        let number = own.as_raw_fd();
        let lowest = run(|| File::open("/proc/self/stat").unwrap().as_raw_fd()).unwrap();
        assert_eq!(lowest, 0);
        assert!(rustix::io::fcntl_getfd(&own).is_ok(), "{number} is closed");
    }
}
