//! `SharedArena`: volatile memory that processes share.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::buffer::SharedBuffer;
use super::core::Core;
use super::file;
use super::layout::{Geometry, Kind};
use super::stats::SharedStats;
use super::table::{Table, pages_of};
use super::word::MAX_PRIORITY;
use crate::ground::error::{Error, Result};
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::ground::sys::{Errno, page_size};
use crate::observation::stats::SHARED_ALLOCATED;
use crate::verbs::volatile::Priority;

/// Volatile memory that several processes share: what one of them has made, all can use, and
/// under memory pressure any of them purges what is not pinned.
///
/// The memory is a memfd, which the program passes to other processes, or a file of a name in
/// `/dev/shm`. It holds a number of [buffers](SharedBuffer) up to a size; only contents
/// take memory, and the table (56 bytes for each possible buffer).
///
/// ```
/// use std::os::fd::AsFd;
/// use tenure::{SharedArena, volatile::Priority};
///
/// let arena = SharedArena::new(64, 1 << 20)?;
/// let (buffer, pin) = arena.allocate(6, Priority::Normal)?;
/// pin.write(0, b"shared")?;
/// drop(pin); // Any attached process may purge it now.
///
/// // Another process gets the arena's descriptor, and the number of the buffer.
/// let elsewhere = SharedArena::from_fd(arena.as_fd().try_clone_to_owned()?)?;
/// let pin = elsewhere.buffer(buffer.id())?.pin()?;
/// if pin.is_intact() {
///     let mut bytes = [0; 6];
///     pin.read(0, &mut bytes)?;
///     assert_eq!(&bytes, b"shared");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Purging
///
/// The kernel does not purge shared memory. A thread of each attached process (`tenure-evictor`)
/// purges under [pressure](crate::pressure), one process at a time: the lowest priority first,
/// and of one priority what was unpinned least recently, always whole buffers. So does
/// [`allocate`](SharedArena::allocate), when less than an eighth of the memory is left. A process
/// that is stopped (SIGSTOP) while it purges keeps no other from purging.
///
/// # Processes that end
///
/// Pins of a process that has ended, also by SIGKILL, end when the next process evicts, or
/// finds them in its way. A process is known by its number and the time of its start, and only
/// to processes of the same PID and time namespaces: others take it for alive, so containers
/// that share an arena should share these, too. A process that calls `execve` keeps its pins.
///
/// # Forks
///
/// A child of `fork` may use the arena: it attaches itself at its first call. It does not have
/// its parent's pins, and the addresses of its parent's buffers are not mapped in it.
/// A child made by a bare `clone` system call, which runs no fork handlers, gets errors (ECHILD).
///
/// # What is checked
///
/// Names are files of mode 0600 (`/dev/shm/tenure.NAME`). A symbolic link, a file of another
/// user or with access for others, one that was truncated, or has another layout, is an error.
/// Calls of tenure stay in bounds, and do not hang, whatever another process writes to the
/// file. The length of a memfd is sealed. A file with a name can be truncated by a process of
/// its owner: each call checks the length first, but a process that truncates it in the middle
/// of a call causes SIGBUS. A program that closes descriptors which it did not open gets errors
/// (EBADF); no other file under the same number is touched.
pub struct SharedArena {
    core: Arc<Core>,
}

impl SharedArena {
    /// Makes an arena without a name, for `count` buffers (2^20 at most) of up to `max_bytes`: `memfd_create(2)`.
    ///
    /// # Errors
    ///
    /// * [`Error::SharedMemory`] (EINVAL) if there can be no such arena, (EFBIG) if
    ///   RLIMIT_FSIZE forbids it,
    /// * [`Error::System`] when the kernel refuses a file, memory for the table or addresses.
    pub fn new(count: usize, max_bytes: usize) -> Result<Self> {
        Self::of(file::create_memfd(geometry(count, max_bytes)?)?)
    }

    /// Opens the arena of a name, or makes one as [`new`](Self::new) does: then it is there
    /// until [`remove`](Self::remove), or until the machine stops. An arena that exists keeps its
    /// sizes.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), and [`Error::SharedMemory`]
    /// * (EINVAL) if the name is empty, longer than 200 bytes, or has a slash,
    /// * (EACCES, ELOOP) if the file belongs to another user, or is a symbolic link,
    /// * (EPROTO) if it is no arena, of another version, truncated or corrupt,
    /// * (EUSERS) if 48 processes have attached it.
    pub fn open(name: &str, count: usize, max_bytes: usize) -> Result<Self> {
        let geometry = geometry(count, max_bytes)?;
        Self::of(file::open_or_create(name, || geometry)?)
    }

    /// Attaches the arena of a descriptor that another process has passed on.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open); EPERM if the file's length is not sealed.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        Self::of(file::open_memfd(fd)?)
    }

    /// Removes a name. Processes that use the arena keep it.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] for a name that is none, and [`Error::System`] if there is no such file, or it belongs to another user.
    pub fn remove(name: &str) -> Result<()> {
        file::remove(name)
    }

    fn of(table: Table) -> Result<Self> {
        if table.geometry.kind == Kind::Cache {
            return Err(table.refused("it is a cache", Errno::PROTO));
        }
        let core = Arc::new(Core::new(table)?);
        Ok(Self { core })
    }

    /// Makes a buffer of zeros, which is pinned.
    ///
    /// # Errors
    ///
    /// * [`Error::SharedMemory`] (ENOMEM) if the arena has no free buffer, (EINVAL) if it has
    ///   none of this size,
    /// * [`Error::NotAdmitted`] if the memory is unavailable, also after purging,
    /// * [`Error::System`] if the kernel has no memory (ENOSPC: `/dev/shm` is full).
    pub fn allocate(
        &self,
        len: usize,
        priority: Priority,
    ) -> Result<(SharedBuffer, super::SharedPin)> {
        let attached = self.core.attached_to_change()?;
        let (attachment, table) = (&attached.caller(), &self.core.table);
        let len = len as u64;
        if len > table.geometry.max_bytes() {
            return Err(table.refused("its buffers are smaller", Errno::INVAL));
        }
        let priority = u64::from(priority.as_u8());
        let admission = self.core.admit(attachment, pages_of(len), priority)?;
        let hint = table.header().sequence.load(Ordering::Relaxed) as usize;
        let full = || table.refused("it has no free buffer", Errno::NOMEM);
        let index = table.claim_free(attachment, hint).ok_or_else(full)?;
        let entry = &table.entries()[index];
        entry.len().store(len, Ordering::Relaxed);
        entry
            .used
            .store(monotonic_coarse_nanos(), Ordering::Relaxed);
        let place = table.geometry.place(index, 0, len).ok_or_else(full)?;
        let mut turn = table.turn_or_go(attachment);
        if let Err(errno) = turn.allocate(place, pages_of(len)) {
            table.drop_claimed(&mut turn, attachment, index);
            return Err(Error::System {
                call: "fallocate",
                errno,
            });
        }
        drop(turn);
        admission.mark_resident(usize::MAX);
        // Counted first, as a thread that ends a pin would find none.
        let mut pins = attached.lock_pins();
        let published = table.publish_live(attachment, index, len, priority, true);
        let generation = published.ok_or_else(full)?;
        *pins.entry(index).or_insert(0) += 1;
        drop(pins);
        SHARED_ALLOCATED.add(1, pages_of(len));
        let buffer = SharedBuffer::of(Arc::clone(&self.core), index, generation, len);
        let pin = buffer.adopt(attached, true);
        Ok((buffer, pin))
    }

    /// Returns a buffer by its [number](SharedBuffer::id), also one that was purged.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] (ENOENT) if there is no such buffer (any more), and for a file that was truncated.
    pub fn buffer(&self, id: u64) -> Result<SharedBuffer> {
        self.core.attached()?;
        SharedBuffer::find(&self.core, id)
    }

    /// Purges buffers that are not pinned, in the order of purging, until so many bytes are
    /// free. Returns the bytes of those that were purged: 0 also while another process purges.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] for a file that was truncated.
    pub fn purge(&self, bytes: usize) -> Result<usize> {
        let attached = self.core.attached_to_change()?;
        let purged = self
            .core
            .table
            .evict(&attached.attachment, bytes as u64, MAX_PRIORITY);
        Ok(usize::try_from(purged.unwrap_or(0)).unwrap_or(usize::MAX))
    }

    /// Returns what the arena has, and what was purged, by all processes.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] for a file that was truncated.
    pub fn stats(&self) -> Result<SharedStats> {
        self.core.attached()?;
        SharedStats::of(&self.core.table)
    }

    /// Returns whether touching a purged page through [`as_ptr`](super::SharedPin::as_ptr) is
    /// SIGBUS in this process. Without userfaultfd(2) it reads as zeros.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] for a file that was truncated.
    pub fn is_protected(&self) -> Result<bool> {
        Ok(self.core.attached()?.is_protected())
    }
}

fn geometry(count: usize, max_bytes: usize) -> Result<Geometry> {
    let object_bytes = (max_bytes.max(1) as u64).checked_next_multiple_of(page_size() as u64);
    Ok(Geometry {
        kind: Kind::Arena {
            object_bytes: object_bytes.unwrap_or(u64::MAX),
        },
        count: u32::try_from(count).unwrap_or(u32::MAX) as usize,
        seed: [0; 2],
    })
}

impl AsFd for SharedArena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.table.fd()
    }
}

impl fmt::Debug for SharedArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedArena")
            .field("name", &self.core.table.name)
            .finish_non_exhaustive()
    }
}
