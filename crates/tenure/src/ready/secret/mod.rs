//! `SecretBuffer`: a buffer for keys, passwords and plaintext.

mod memory;

use std::fmt;
use std::io::{self, Read};

use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::ground::error::{Error, Result};
use crate::ground::sys::page_size;
use memory::SecretMemory;

/// A byte buffer with a fixed maximum length, for secrets: it is kept from swap, core
/// dumps, children, and the next user of its memory.
///
/// The buffer reserves the addresses for its maximum at once, and the bytes never
/// move, so growing leaves no copy behind. Only pages that are used take memory.
///
/// | protection | mechanism |
/// | --- | --- |
/// | not swapped out | each page is locked when it is first used: `mlock2(MLOCK_ONFAULT)` (Linux 4.4) |
/// | not in core dumps | `MADV_DONTDUMP` |
/// | zeros in children | `MADV_WIPEONFORK` (Linux 4.14) |
/// | overruns by whole pages are SIGSEGV | a guard page (`PROT_NONE`) at either end |
/// | wiped when truncated or dropped | the `zeroize` crate |
/// | compared in constant time | [`ct_eq`](SecretBuffer::ct_eq), by the `subtle` crate |
/// | not printed | `Debug` shows neither contents nor length |
///
/// The maximum, rounded up to pages, counts against `RLIMIT_MEMLOCK` from the
/// start, and stays locked until the buffer is dropped, also when the program calls
/// [`unlock_all`](crate::lock::unlock_all). Accesses between the maximum and the end of its last page are not
/// detected. All bytes behind the length are zeros, so dropping the buffer wipes only
/// the length.
///
/// There is no `Clone` and no `==`: a copy would be a second secret, and the time of a
/// comparison by [`as_slice`](SecretBuffer::as_slice) reveals how many bytes are equal.
///
/// ```
/// use tenure::SecretBuffer;
///
/// let mut key = SecretBuffer::with_max_len(4096)?;
/// key.extend_from_slice(b"correct horse")?;
/// assert!(key.ct_eq(b"correct horse"));
/// assert_eq!(format!("{key:?}"), "SecretBuffer { max_len: 4096, .. }");
/// key.clear();
/// assert!(key.is_empty());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Forks
///
/// In a child the buffer has the same length and holds zeros, not locked; the
/// parent's bytes stay as they are. A [hidden](SecretBuffer::hidden_with_max_len)
/// buffer is not inherited: in a child it is empty, its maximum is 0, and an access to
/// the old addresses through a pointer is SIGSEGV.
///
/// # What it does not do
///
/// * It does not protect against readers with access to the process: root, a debugger,
///   `/proc/PID/mem`. They cannot read
///   [hidden](SecretBuffer::hidden_with_max_len) memory, but code injected into the
///   process can.
/// * It cannot wipe copies that the program makes: in registers, on the stack, in the
///   slice that it was filled from, in a pipe or a socket.
/// * It cannot keep its lock when code calls `munlockall(2)`, or `munlock(2)` on its pages,
///   past this copy of tenure.
/// * It is not wiped when the process is killed, aborts or exits without
///   dropping it. The kernel zeroes pages only before another process gets them.
/// * A lock keeps pages from swap, but not from hibernation, which writes all
///   memory to disk (the kernel does not hibernate while hidden memory
///   exists), nor from a snapshot or dump of the whole machine.
/// * The kernel may migrate a locked page to another frame (hidden pages are never
///   migrated). The old frame keeps the contents until it is used again.
pub struct SecretBuffer {
    memory: SecretMemory,
    max_len: usize,
    /// Bytes behind the length are always zeros.
    len: usize,
}

impl SecretBuffer {
    /// Creates an empty buffer for at most `max_bytes` bytes: `mmap(2)`,
    /// `madvise(2)` and `mlock2(MLOCK_ONFAULT)` (Linux 4.14 for all of it). It needs neither
    /// `/proc` nor a descriptor.
    ///
    /// # Errors
    ///
    /// With nothing left mapped:
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow the maximum,
    /// * [`Error::EmptyMapping`] for a maximum of 0,
    /// * [`Error::Overflow`] for a maximum larger than the address space,
    /// * [`Error::System`] and [`Error::SystemAt`] with another error of the kernel:
    ///   ENOMEM (memory or address space is short, or the limit does not allow the maximum
    ///   and its figures cannot be read without `/proc`), EINVAL (the kernel lacks the
    ///   advice).
    pub fn with_max_len(max_bytes: usize) -> Result<Self> {
        Ok(Self::new(
            SecretMemory::wiped_on_fork(max_bytes)?,
            max_bytes,
        ))
    }

    /// Creates an empty buffer for at most `max_bytes` bytes in memory that is missing
    /// from the kernel's own direct map: `memfd_secret(2)` (Linux 5.14; enabled by
    /// default from 6.5 on).
    ///
    /// Not even root can read such pages through `/proc/PID/mem`, `ptrace(2)` or
    /// `process_vm_readv(2)`, and the kernel never migrates them. In turn,
    /// direct I/O from them fails with EFAULT, and the machine does not
    /// hibernate. The kernel locks them itself, and they count against
    /// `RLIMIT_MEMLOCK` like other locked pages. (Linux 6.12.117 does neither: the
    /// pages stay in memory all the same, and no limit applies.) Children do
    /// not inherit them (`MADV_DONTFORK`).
    ///
    /// There is no fallback: on a kernel without such memory the call fails.
    /// [`Features::memfd_secret`](crate::Features::memfd_secret) tells beforehand.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where `memfd_secret` is missing, disabled or refused;
    /// [`Error::System`] with EMFILE or ENFILE when no descriptor is left, of which the call
    /// needs one until it returns; otherwise as for
    /// [`with_max_len`](SecretBuffer::with_max_len).
    ///
    /// ```
    /// use tenure::{Error, SecretBuffer};
    ///
    /// let key = match SecretBuffer::hidden_with_max_len(4096) {
    ///     // This program accepts the weaker protection.
    ///     Err(Error::Unsupported { .. }) => SecretBuffer::with_max_len(4096)?,
    ///     answer => answer?,
    /// };
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hidden_with_max_len(max_bytes: usize) -> Result<Self> {
        Ok(Self::new(SecretMemory::hidden(max_bytes)?, max_bytes))
    }

    fn new(memory: SecretMemory, max_len: usize) -> Self {
        Self {
            memory,
            max_len,
            len: 0,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len.min(self.max_len())
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum length, as given to the constructor.
    pub fn max_len(&self) -> usize {
        if self.memory.is_present() {
            self.max_len
        } else {
            0
        }
    }

    /// Lends the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory has at least `max_len` readable bytes for as long as
        // `self` lives, and `len()` is no more than that (0 if this process does not
        // have the memory). Changing the bytes takes a mutable borrow of `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len()) }
    }

    /// Lends the bytes for changing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; the memory is writable, and `self` is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len()) }
    }

    /// Appends a copy of `bytes`. The caller's bytes stay as they are: wipe them, or
    /// use [`read_from`](SecretBuffer::read_from) to avoid the copy.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] when the length would exceed the maximum, with nothing
    /// appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<()> {
        self.grow(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Sets the length: wipes bytes that are cut off, or appends bytes of the given
    /// value. Appending zeros touches no page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] when `len` exceeds the maximum, with nothing done.
    pub fn resize(&mut self, len: usize, value: u8) -> Result<()> {
        let Some(more) = len.checked_sub(self.len()) else {
            self.truncate(len);
            return Ok(());
        };
        let appended = self.grow(more)?;
        if value != 0 {
            appended.fill(value);
        }
        Ok(())
    }

    /// Keeps the first `len` bytes and wipes the others. Does nothing if the buffer is
    /// not longer than that.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.as_mut_slice()[len..].zeroize();
            self.len = len;
        }
    }

    /// Wipes all bytes and sets the length to 0.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Appends all bytes of the reader until its end and returns their number. They
    /// are read directly into the locked pages, without another copy.
    ///
    /// # Errors
    ///
    /// The errors of the reader; [`Error::OutOfBounds`], in an [`io::Error`], when the
    /// reader has more bytes than the buffer can hold. The buffer then has its previous
    /// contents, and the bytes that were read are wiped.
    ///
    /// ```
    /// use tenure::SecretBuffer;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let mut file: &[u8] = b"from a file, a pipe or a terminal";
    /// let mut key = SecretBuffer::with_max_len(64)?;
    /// let read = key.read_from(&mut file)?;
    /// assert_eq!(read, key.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_from(&mut self, mut reader: impl Read) -> io::Result<usize> {
        let before = self.len();
        let mut kept = TruncateOnDrop {
            buffer: self,
            len: before,
        };
        let mut end = before;
        loop {
            // A reader may have written more bytes than it returned.
            kept.buffer.truncate(end);
            let free_bytes = kept.buffer.max_len() - end;
            let mut probe = [0];
            let lent = match free_bytes.min(page_size() - end % page_size()) {
                0 => &mut probe[..],
                chunk => kept.buffer.grow(chunk)?,
            };
            match reader.read(lent) {
                Ok(0) => break,
                Ok(_) if free_bytes == 0 => {
                    probe.zeroize();
                    return Err(kept.buffer.past_maximum(end, end + 1).into());
                }
                Ok(read) => end += read.min(lent.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        kept.len = end;
        Ok(end - before)
    }

    /// Compares the bytes in a time that depends only on the lengths
    /// (`subtle::ConstantTimeEq`). Different lengths return at once.
    pub fn ct_eq(&self, other: &[u8]) -> bool {
        self.as_slice().ct_eq(other).into()
    }

    /// Appends `more` zero bytes and lends them.
    fn grow(&mut self, more: usize) -> Result<&mut [u8]> {
        let from = self.len();
        let to = from.saturating_add(more);
        if to > self.max_len() {
            return Err(self.past_maximum(from, to));
        }
        self.len = to;
        Ok(&mut self.as_mut_slice()[from..])
    }

    fn past_maximum(&self, from: usize, to: usize) -> Error {
        Error::OutOfBounds {
            from,
            to,
            len: self.max_len(),
        }
    }
}

impl Drop for SecretBuffer {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for SecretBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The length of a password is part of the secret.
        f.debug_struct("SecretBuffer")
            .field("max_len", &self.max_len())
            .finish_non_exhaustive()
    }
}

/// Truncates the buffer to the bytes that stay, even if reading ends in an error or a
/// panic.
struct TruncateOnDrop<'a> {
    buffer: &'a mut SecretBuffer,
    len: usize,
}

impl Drop for TruncateOnDrop<'_> {
    fn drop(&mut self) {
        self.buffer.truncate(self.len);
    }
}
