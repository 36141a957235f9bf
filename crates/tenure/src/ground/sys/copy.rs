//! Copying from memory that may not be accessible: EFAULT instead of SIGBUS or
//! SIGSEGV.

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::last_errno;

/// Copies `into.len()` bytes from the address: `process_vm_readv(2)` on this
/// process (Linux 3.2), or through a memfd where a container denies that.
///
/// EFAULT when a page cannot be read; part of `into` may have been written
/// then.
pub(crate) fn copy_from(at: usize, into: &mut [u8]) -> Result<(), Errno> {
    match with_readv(at, into) {
        Err(Errno::PERM | Errno::NOSYS | Errno::SRCH) => with_memfd(at, into),
        answer => answer,
    }
}

fn with_readv(at: usize, into: &mut [u8]) -> Result<(), Errno> {
    let own_pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let remote = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(at + done),
            iov_len: rest.len(),
        };
        // SAFETY: the kernel writes to `rest` only, and validates the other
        // address. (rustix has no process_vm_readv.)
        let got = unsafe { libc::process_vm_readv(own_pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(got) {
            Ok(0) => return Err(Errno::FAULT),
            // A short count stops before an unreadable page; the next call
            // starts there and returns its error.
            Ok(copied) => done += copied,
            Err(_) => return Err(last_errno()),
        }
    }
    Ok(())
}

fn with_memfd(at: usize, into: &mut [u8]) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    const PIECE_BYTES: usize = 1 << 20;
    let between = rustix::fs::memfd_create("tenure-copy", MemfdFlags::CLOEXEC)?;
    let mut from = at;
    for piece in into.chunks_mut(PIECE_BYTES) {
        let mut done = 0;
        while done < piece.len() {
            let address = std::ptr::with_exposed_provenance(from + done);
            let len = piece.len() - done;
            // SAFETY: the kernel validates the address. (By libc, because
            // rustix takes a reference, and these bytes may not be readable.)
            let got = unsafe { libc::pwrite(between.as_raw_fd(), address, len, 0) };
            let written = usize::try_from(got).map_err(|_| last_errno())?;
            if written == 0 {
                return Err(Errno::FAULT);
            }
            let copied = rustix::io::pread(&between, &mut piece[done..done + written], 0)?;
            if copied != written {
                return Err(Errno::IO);
            }
            done += written;
        }
        from += piece.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::super::page_size;
    use super::*;
    use crate::PageRange;

    #[test]
    fn copy_of_unreadable_page_is_efault() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 3 * page, false, true).unwrap();
        // SAFETY: mapped above.
        let bytes = unsafe { std::slice::from_raw_parts_mut(range.as_ptr(), 2 * page) };
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        let last = PageRange::between(range.start() + 2 * page, range.end());
        map::protect_none(last).unwrap();
        for copy in [with_readv, with_memfd] {
            let mut copied = vec![0; page + 7];
            copy(range.start() + 5, &mut copied).unwrap();
            assert_eq!(copied[..], bytes[5..page + 12]);
            assert_eq!(copy(range.end() - page - 3, &mut [0; 4]), Err(Errno::FAULT));
            assert_eq!(copy(range.start(), &mut []), Ok(()));
        }
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }
}
