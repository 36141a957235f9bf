//! Access to single pages by system calls: EFAULT instead of SIGBUS or SIGSEGV.

use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::{last_errno, page_size};
use crate::PageRange;

/// Reads and writes pages without changing them.
#[derive(Debug)]
pub(crate) struct Prefaulter {
    /// A memfd that receives the bytes that are read; each write goes to its
    /// start.
    sink: OwnedFd,
}

/// The pages that one call reads.
const BATCH_PAGES: usize = 512;

impl Prefaulter {
    pub(crate) fn new() -> Result<Self, Errno> {
        let sink = rustix::fs::memfd_create("tenure-touch", MemfdFlags::CLOEXEC)?;
        Ok(Self { sink })
    }

    /// Reads a byte of each page: `pwritev(2)` to the memfd.
    pub(crate) fn read(&self, range: PageRange) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        let mut at = range.start();
        while at < range.end() {
            let mut bytes = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 1,
            }; BATCH_PAGES];
            let count = BATCH_PAGES.min((range.end() - at) / page_size());
            for (index, byte) in bytes[..count].iter_mut().enumerate() {
                byte.iov_base = std::ptr::with_exposed_provenance_mut(at + index * page_size());
            }
            // SAFETY: the kernel validates the addresses, and reads `count`
            // entries of `bytes`, which outlives the call. (By libc, because
            // rustix takes references, and these bytes may not be readable.)
            let got =
                unsafe { libc::pwritev(self.sink.as_raw_fd(), bytes.as_ptr(), count as i32, 0) };
            match usize::try_from(got) {
                // A short count stops before an unreadable page; the next call
                // starts there and returns its error.
                Ok(read) if read > 0 => at += read * page_size(),
                Ok(_) => return Err(Errno::FAULT),
                Err(_) => match last_errno() {
                    Errno::INTR => {}
                    errno => return Err(errno),
                },
            }
        }
        Ok(())
    }

    /// Writes a word of each page: [`write_page`].
    pub(crate) fn write(&self, range: PageRange) -> Result<(), Errno> {
        range.chunks(page_size()).try_for_each(write_page)
    }
}

/// Adds zero to the first word of a page, atomically: `futex(FUTEX_WAKE_OP)` (Linux
/// 2.6.14). Where the page is present and writable the kernel takes no lock that another
/// page or a change of the mappings needs.
pub(crate) fn write_page(page: PageRange) -> Result<(), Errno> {
    // Add 0; then wake waiters of the word if its old value was less than the minimum,
    // which is never the case: the signed 12-bit operand cannot express that, so at worst
    // one waiter wakes and checks its word again. The word is also the first futex, of which
    // one waiter may wake, so that threads with different pages share nothing.
    let add_zero = (libc::FUTEX_OP_ADD << 28) | (libc::FUTEX_OP_CMP_LT << 24) | 0x800;
    // A signal interrupts it; a seccomp filter may give such an answer for ever.
    const MAX_TRIES: usize = 1000;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..MAX_TRIES {
        // SAFETY: the kernel validates the address; adding zero atomically leaves every
        // value as it is, also beside other threads' writes.
        let woken = unsafe {
            libc::syscall(
                libc::SYS_futex,
                page.start(),
                libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
                0,
                0,
                page.start(),
                add_zero,
            )
        };
        answer = if woken < 0 { Err(last_errno()) } else { Ok(()) };
        if !matches!(answer, Err(Errno::INTR | Errno::AGAIN)) {
            break;
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::super::pagemap::{self, PageState};
    use super::*;

    fn states(range: PageRange) -> Vec<PageState> {
        pagemap::scan(range)
            .unwrap()
            .iter()
            .map(|run| run.state)
            .collect()
    }

    #[test]
    fn prefaulter_read_and_write_leave_contents() {
        let range = map::map(Backing::Anonymous, 1100 * page_size(), false, true).unwrap();
        super::super::advise::advise(range, super::super::advise::Advice::NoHugePage).unwrap();
        let prefaulter = Prefaulter::new().unwrap();
        prefaulter.read(range).unwrap();
        assert!(!states(range).contains(&PageState::Absent));
        // SAFETY: inside the mapping made above.
        unsafe { range.as_ptr().write_bytes(0xff, 100) };
        prefaulter.write(range).unwrap();
        assert_eq!(states(range), [PageState::Present]);
        // SAFETY: as above.
        assert!((0..100).all(|at| unsafe { range.as_ptr().add(at).read() } == 0xff));
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
        // The lowest page is never mapped. (The range above may be again.)
        let range = PageRange::between(page_size(), 2 * page_size());
        assert_eq!(prefaulter.read(range), Err(Errno::FAULT));
        assert_eq!(prefaulter.write(range), Err(Errno::FAULT));
    }
}
