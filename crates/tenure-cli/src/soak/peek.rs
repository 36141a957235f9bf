//! Reading and writing memory of which pages may be missing: what would be a
//! signal is an answer here. (tenure reads in the same way, but none of its code
//! is used to check it.)

use std::{io, process};

use tenure::{PageRange, page_size};

/// Copies `into.len()` bytes from the address on; returns how many there were
/// before the first page that cannot be read.
pub fn read(at: usize, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes to `into` only, and checks the other address.
    done(unsafe { libc::process_vm_readv(own_pid(), &local, 1, &remote, 1, 0) })
}

/// Writes a page whole, or not at all if it is missing.
pub fn write_page(at: usize, bytes: &[u8]) -> io::Result<bool> {
    debug_assert_eq!(bytes.len(), page_size());
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: bytes.len(),
    };
    // SAFETY: the caller's own memory, which it has pages of; the kernel checks
    // the address.
    let written = done(unsafe { libc::process_vm_writev(own_pid(), &local, 1, &remote, 1, 0) })?;
    match written {
        0 => Ok(false),
        all if all == bytes.len() => Ok(true),
        some => Err(io::Error::other(format!(
            "{some} bytes of a page were written"
        ))),
    }
}

/// Has the kernel take what it may of the range. Whoever it belongs to loses
/// nothing else by it.
pub fn page_out(range: PageRange) {
    let advice = rustix::mm::Advice::LinuxPageOut;
    // SAFETY: it changes no contents, but those that their owner has given up.
    let _ = unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) };
}

fn own_pid() -> i32 {
    process::id().cast_signed()
}

fn done(answer: isize) -> io::Result<usize> {
    match usize::try_from(answer) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_page_is_an_answer() {
        let page = page_size();
        let mut memory = tenure::Mapping::anonymous(3 * page).map().unwrap();
        memory.as_mut_slice().unwrap().fill(7);
        let range = memory.range();
        let last = range.start() + 2 * page;
        // SAFETY: nobody uses the page, and the mapping is only dropped.
        unsafe { PageRange::new(last, page).unwrap().munmap() }.unwrap();
        let mut bytes = vec![0; 3 * page];
        assert_eq!(read(range.start(), &mut bytes).unwrap(), 2 * page);
        assert!(bytes[..2 * page].iter().all(|&byte| byte == 7));
        assert_eq!(read(last, &mut bytes[..page]).unwrap(), 0);
        assert!(!write_page(last, &bytes[..page]).unwrap());
        assert!(write_page(range.start(), &bytes[2 * page..]).unwrap());
        assert_eq!(memory.as_slice()[page - 1], 0);
    }
}
