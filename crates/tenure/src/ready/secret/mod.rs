//! A buffer for secrets: keys, passwords, plaintext.

mod fork;
mod memory;

use std::fmt;
use std::io::{self, Read};

use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::ground::error::{Error, Result};
use crate::ground::sys::page_size;
use memory::SecretMemory;

/// Makes what the first secret would make, if that has not been done.
pub(crate) fn prepare() {
    let _ = fork::register();
}

/// Bytes that are kept from swap, dumps, children and the next owner of their
/// memory: a small `Vec<u8>` with a fixed maximum.
///
/// The addresses for the maximum are taken at once, and the bytes never move,
/// so that growing leaves no copy behind. Only pages that are used take memory.
///
/// | what | by |
/// | --- | --- |
/// | not swapped out | locked page by page as it is used: `mlock2(MLOCK_ONFAULT)` (Linux 4.4) |
/// | not in core dumps | `MADV_DONTDUMP` |
/// | zeros in children | `MADV_WIPEONFORK` (Linux 4.14) |
/// | overruns of whole pages are SIGSEGV | a page without access at both ends |
/// | wiped when cut off or dropped | the `zeroize` crate |
/// | compared in constant time | [`ct_eq`](SecretBuffer::ct_eq), by the `subtle` crate |
/// | not printed | `Debug` shows neither contents nor length |
///
/// The maximum, rounded up to pages, counts against `RLIMIT_MEMLOCK` from the
/// start. Bytes between the maximum and the end of its last page are not
/// guarded.
///
/// There is no `Clone` and no `==`: a copy would be a second secret, and a
/// comparison by [`as_slice`](SecretBuffer::as_slice) tells by its time how
/// much was right.
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
/// A child finds the same length and zeros, not locked; the parent's bytes stay
/// as they are. Of a buffer that is
/// [hidden](SecretBuffer::hidden_with_max_len) a child has nothing: there it is
/// empty, its maximum is 0, and touching the old addresses through a pointer is
/// SIGSEGV.
///
/// # What it does not do
///
/// * It does not keep out who may look into the process: root, a debugger,
///   `/proc/PID/mem`. [Hidden](SecretBuffer::hidden_with_max_len) memory is
///   closed to these, but not to code that is made to run in the process.
/// * It knows nothing of copies that the program makes: in registers, on the
///   stack, in the slice that it was filled from, in a pipe or a socket.
/// * It is not wiped when the process is killed, aborts or exits without
///   dropping it. The kernel clears pages before another process gets them, and
///   not before.
/// * A lock keeps pages from swap, not from hibernation, which writes all of
///   the memory to disk (the kernel does not hibernate while hidden memory
///   exists), nor from a snapshot or dump of the whole machine.
/// * The kernel may move a locked page to another place in memory (hidden pages
///   stay where they are), and what was in the old place is there until it is
///   used again.
pub struct SecretBuffer {
    memory: SecretMemory,
    max_len: usize,
    /// All bytes behind it are zeros.
    len: usize,
}

impl SecretBuffer {
    /// Makes an empty buffer for at most `max_bytes` bytes: `mmap(2)`,
    /// `madvise(2)` and `mlock2(MLOCK_ONFAULT)` (Linux 4.14 for all of it).
    ///
    /// # Errors
    ///
    /// With nothing left mapped:
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow the maximum,
    /// * [`Error::EmptyMapping`] for a maximum of 0,
    /// * [`Error::Overflow`] for a maximum that no address space has,
    /// * [`Error::System`] and [`Error::SystemAt`] with what else the kernel
    ///   answered: ENOMEM (no room), EINVAL (advice that it does not know).
    pub fn with_max_len(max_bytes: usize) -> Result<Self> {
        Ok(Self::new(
            SecretMemory::wiped_on_fork(max_bytes)?,
            max_bytes,
        ))
    }

    /// Makes an empty buffer for at most `max_bytes` bytes in memory that the
    /// kernel itself has no other mapping of: `memfd_secret(2)` (Linux 5.14; by
    /// default from 6.5 on).
    ///
    /// Such pages cannot be read through `/proc/PID/mem`, `ptrace(2)` or
    /// `process_vm_readv(2)`, by root either, and are never moved. In turn,
    /// direct I/O from them fails with EFAULT, and the machine does not
    /// hibernate. The kernel locks them itself; they count against
    /// `RLIMIT_MEMLOCK` like others. (Linux 6.12.117 does neither: they are
    /// kept in memory all the same, and no limit holds for them.) Children do
    /// not inherit them (`MADV_DONTFORK`).
    ///
    /// There is no falling back: where the kernel has no such memory, this is an
    /// error, and [`Features::memfd_secret`](crate::Features::memfd_secret)
    /// says so beforehand.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where `memfd_secret` is missing, switched off or
    /// refused; otherwise as for [`with_max_len`](SecretBuffer::with_max_len).
    ///
    /// ```
    /// use tenure::{Error, SecretBuffer};
    ///
    /// let key = match SecretBuffer::hidden_with_max_len(4096) {
    ///     // Known, and decided by the program.
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

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len.min(self.max_len())
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes there can be: what was asked for.
    pub fn max_len(&self) -> usize {
        if self.memory.is_here() {
            self.max_len
        } else {
            0
        }
    }

    /// Lends the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory has `max_len` bytes at least, readable for as long
        // as `self` lives, and `len` is no more than that (0 where this process
        // has no such memory). Who changes them borrows the buffer mutably.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len()) }
    }

    /// Lends the bytes for changing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; writable, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len()) }
    }

    /// Appends a copy of `bytes`. Where they come from they stay: wipe them
    /// there, or use [`read_from`](SecretBuffer::read_from).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] when they go past the maximum, with nothing
    /// appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<()> {
        self.grow(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Makes the buffer `len` bytes long: cuts bytes off, which are wiped, or
    /// appends bytes of the value given. Appending zeros touches no page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] when `len` is past the maximum, with nothing done.
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

    /// Cuts off all but the first `len` bytes and wipes what was cut off. Does
    /// nothing if there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.as_mut_slice()[len..].zeroize();
            self.len = len;
        }
    }

    /// Cuts off all bytes and wipes them.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Appends all that the reader has until its end, read straight into the
    /// locked pages (no other copy is made), and returns how many bytes.
    ///
    /// # Errors
    ///
    /// What the reader answers; [`Error::OutOfBounds`], in an
    /// [`io::Error`], when it has more than the buffer has room for. The buffer
    /// is then as it was before; what was read is lost.
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
        let mut kept = CutBack {
            buffer: self,
            len: before,
        };
        let mut end = before;
        loop {
            // A reader may write to all that it is lent, whatever it says.
            kept.buffer.truncate(end);
            let room = kept.buffer.max_len() - end;
            let mut one_more = [0];
            let lent = match room.min(page_size() - end % page_size()) {
                0 => &mut one_more[..],
                chunk => kept.buffer.grow(chunk)?,
            };
            match reader.read(lent) {
                Ok(0) => break,
                Ok(_) if room == 0 => {
                    one_more.zeroize();
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

    /// Whether the bytes are the same, in a time that depends on the lengths
    /// only: by `subtle::ConstantTimeEq`. Different lengths are told at once.
    pub fn ct_eq(&self, other: &[u8]) -> bool {
        self.as_slice().ct_eq(other).into()
    }

    /// Appends `more` bytes, which are zeros, and lends them.
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
        // The length of a password is a part of the secret.
        f.debug_struct("SecretBuffer")
            .field("max_len", &self.max_len())
            .finish_non_exhaustive()
    }
}

/// Cuts the buffer back to the bytes that are to stay, however reading ends: in
/// an error or a panic, too.
struct CutBack<'a> {
    buffer: &'a mut SecretBuffer,
    len: usize,
}

impl Drop for CutBack<'_> {
    fn drop(&mut self) {
        self.buffer.truncate(self.len);
    }
}
