//! Reading and writing memory whose pages may be absent, through the kernel: an access
//! that would raise a signal returns an answer instead. (tenure reads in the same way,
//! but the soak checks tenure with none of its code.)

use std::{io, process, ptr};

use tenure::{PageRange, page_size};

use super::model::{Checked, mismatch};

/// Copies `into.len()` bytes from an address with process_vm_readv. Returns how many
/// precede the first page that cannot be read.
pub fn read(at: usize, into: &mut [u8]) -> Checked<usize> {
    let local = iovec(into.as_mut_ptr(), into.len());
    let remote = iovec(ptr::with_exposed_provenance_mut(at), into.len());
    // SAFETY: the kernel writes to `into` only, and checks the other address.
    copied(unsafe { libc::process_vm_readv(own_pid(), &local, 1, &remote, 1, 0) })
}

/// Writes a page with process_vm_writev. Returns `false` if the page is absent.
pub fn write_page(at: usize, bytes: &[u8]) -> Checked<bool> {
    debug_assert_eq!(bytes.len(), page_size());
    let local = iovec(bytes.as_ptr().cast_mut(), bytes.len());
    let remote = iovec(ptr::with_exposed_provenance_mut(at), bytes.len());
    // SAFETY: the kernel reads `bytes`, and writes to a page of a slot, which nothing
    // borrows; it checks the address.
    let written = copied(unsafe { libc::process_vm_writev(own_pid(), &local, 1, &remote, 1, 0) })?;
    match written {
        0 => Ok(false),
        all if all == bytes.len() => Ok(true),
        part => mismatch("process_vm_writev", "a page, or nothing", part),
    }
}

/// Reclaims what can be reclaimed of a range (MADV_PAGEOUT).
pub fn page_out(range: PageRange) {
    let advice = rustix::mm::Advice::LinuxPageOut;
    // SAFETY: the advice changes no contents but those that the owner has offered.
    let _ = unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) };
}

/// Whether a page of a range is locked: only for locked memory `msync(MS_INVALIDATE)`, which
/// does nothing else, answers EBUSY.
pub fn is_locked(range: PageRange, page: usize) -> bool {
    let flags = rustix::mm::MsyncFlags::ASYNC | rustix::mm::MsyncFlags::INVALIDATE;
    let at = range.as_ptr().wrapping_add(page * page_size());
    // SAFETY: the call changes nothing; the kernel checks the address.
    let answer = unsafe { rustix::mm::msync(at.cast(), page_size(), flags) };
    answer == Err(rustix::io::Errno::BUSY)
}

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    }
}

fn own_pid() -> i32 {
    process::id().cast_signed()
}

/// Returns the number of bytes copied, which is 0 at EFAULT.
fn copied(answer: isize) -> Checked<usize> {
    match usize::try_from(answer) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => mismatch("process_vm_readv or process_vm_writev", "bytes", error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_locked_only_while_it_is_locked() {
        let memory = tenure::Mapping::anonymous(3 * page_size()).map().unwrap();
        let part = PageRange::new(memory.range().start() + page_size(), page_size()).unwrap();
        // SAFETY: nothing else uses the mapping.
        unsafe { part.lock(tenure::LockMode::OnFault) }.unwrap();
        let is_locked = |page| is_locked(memory.range(), page);
        assert_eq!([0, 1, 2].map(is_locked), [false, true, false]);
    }

    #[test]
    fn copy_at_an_unmapped_page_stops_without_a_signal() {
        let page = page_size();
        let mut memory = tenure::Mapping::anonymous(3 * page).map().unwrap();
        memory.as_mut_slice().unwrap().fill(7);
        let range = memory.range();
        let last = range.start() + 2 * page;
        // SAFETY: the test uses the page through `peek` only, and drops the mapping.
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
