//! `userfaultfd(2)` in SIGBUS mode: access to a missing page is SIGBUS instead
//! of mapping the zero page.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_SIGBUS, UFFD_USER_MODE_ONLY, UFFDIO,
    UFFDIO_REGISTER_MODE_MISSING, uffdio_api, uffdio_continue, uffdio_range, uffdio_register,
    uffdio_zeropage,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

use super::page_size;
use super::private_files::{self, PrivateFile, run_with_file};
use crate::PageRange;

pub(super) const MAGIC: u8 = UFFDIO as u8;
const API: Opcode = opcode::read_write::<uffdio_api>(MAGIC, 0x3f);
pub(super) const REGISTER: Opcode = opcode::read_write::<uffdio_register>(MAGIC, 0);
pub(super) const UNREGISTER: Opcode = opcode::read::<uffdio_range>(MAGIC, 1);
const ZEROPAGE: Opcode = opcode::read_write::<uffdio_zeropage>(MAGIC, 4);
const CONTINUE: Opcode = opcode::read_write::<uffdio_continue>(MAGIC, 7);

/// An open userfaultfd in SIGBUS mode, for faults from user mode only (which
/// needs no privilege, Linux 5.11).
///
/// It belongs to the address space that opened it: a child of `fork` needs its
/// own, and is not protected by any registration made here.
#[derive(Debug)]
pub(crate) struct Userfaultfd {
    fd: OwnedFd,
    /// Device and inode of the descriptor when it was opened.
    identity: (u64, u64),
    /// The kernel's feature set, `UFFD_FEATURE_*`.
    features: u64,
}

impl Userfaultfd {
    /// Opens one by the system call, or by `/dev/userfaultfd` (Linux 6.1) where
    /// the call is denied, as in many containers.
    pub(crate) fn open() -> Result<Self, Errno> {
        let (fd, features) = open_with(UFFD_FEATURE_SIGBUS)?;
        let identity = identity(&fd)?;
        Ok(Self {
            fd,
            identity,
            features,
        })
    }

    /// Has the registrations outlive the descriptor: a thread of tenure's holds another
    /// one of this userfaultfd from now on, if it can be started.
    pub(crate) fn keep_open(&self) {
        if !private_files::is_started() && self.is_own_open() {
            private_files::start(&self.fd, self.identity);
        }
    }

    /// Returns whether the descriptor is still the one that was opened, or the thread
    /// holds one. Otherwise every registration has ended: the program has closed
    /// descriptors that it did not open, as daemons do.
    pub(crate) fn is_open(&self) -> bool {
        self.is_own_open() || private_files::holds(PrivateFile::Userfaultfd)
    }

    /// Before Linux 5.12 all descriptors of this family share one inode, so another one
    /// of them under the same number passes for this one.
    fn is_own_open(&self) -> bool {
        identity(&self.fd) == Ok(self.identity)
    }

    /// Returns whether the program cannot close it: the thread holds it.
    pub(crate) fn is_kept(&self) -> bool {
        private_files::is_ready()
    }

    /// Runs `work` with a descriptor that is open, on this thread or on the one that
    /// holds it; EBADF if there is none.
    fn run<T: Send>(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        match self.is_own_open() {
            true => work(self.fd.as_fd()),
            false => run_with_file(PrivateFile::Userfaultfd, work).unwrap_or(Err(Errno::BADF)),
        }
    }

    /// Closes it, and ends the thread that holds another descriptor of it.
    pub(crate) fn close(self) {
        private_files::stop();
        if !self.is_own_open() {
            self.forget();
        }
    }

    /// Drops the value without closing its descriptor, which the program has
    /// closed, and whose number it may have reused.
    pub(crate) fn forget(self) {
        std::mem::forget(self.fd);
    }

    /// Returns the kernel's userfaultfd feature set, `UFFD_FEATURE_*`.
    pub(crate) fn features(&self) -> u64 {
        self.features
    }

    /// Registers the range: UFFDIO_REGISTER. Every access to a missing page is
    /// then SIGBUS, or EFAULT from a system call. Registering again has no
    /// effect.
    ///
    /// EBUSY when a part is registered with another userfaultfd.
    pub(crate) fn register(&self, range: PageRange) -> Result<(), Errno> {
        let mut register = uffdio_register {
            range: uffdio(range),
            mode: u64::from(UFFDIO_REGISTER_MODE_MISSING),
            ioctls: 0,
        };
        // SAFETY: the code belongs to this structure, which outlives the call.
        self.run(|fd| unsafe {
            ioctl(fd, Updater::<REGISTER, uffdio_register>::new(&mut register))
        })
    }

    /// Unregisters the range: UFFDIO_UNREGISTER. Missing pages then read as
    /// zeros again. Unregistered parts are ignored.
    pub(crate) fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        let mut range = uffdio(range);
        // SAFETY: the code belongs to this structure, which outlives the call.
        self.run(|fd| unsafe { ioctl(fd, Updater::<UNREGISTER, uffdio_range>::new(&mut range)) })
    }

    /// Maps the zero page wherever a page of the registered range is missing:
    /// UFFDIO_ZEROPAGE. Other pages stay.
    pub(crate) fn fill_with_zeros(&self, range: PageRange) -> Result<(), Errno> {
        // A seccomp filter may give the answer for ever.
        const MAX_TRIES: usize = 1000;
        let mut tries_left = MAX_TRIES;
        let mut at = range.start();
        let mut end = range.end();
        while at < range.end() {
            let mut zero = uffdio_zeropage {
                range: uffdio(PageRange::between(at, end)),
                mode: 0,
                zeropage: 0,
            };
            // SAFETY: the code belongs to this structure, which outlives the
            // call; pages are only added where there are none.
            let answer = self.run(|fd| unsafe {
                ioctl(fd, Updater::<ZEROPAGE, uffdio_zeropage>::new(&mut zero))
            });
            let filled = usize::try_from(zero.zeropage).unwrap_or(0);
            match answer {
                // Done in part, or the mappings changed concurrently: continue.
                Ok(()) | Err(Errno::AGAIN) if filled > 0 => {
                    at += filled;
                    tries_left = MAX_TRIES;
                }
                Ok(()) | Err(Errno::AGAIN) if tries_left > 0 => tries_left -= 1,
                Ok(()) => return Err(Errno::AGAIN),
                Err(Errno::EXIST) => at += page_size(),
                // The range spans several mappings: a page at a time gets past
                // the end of the first.
                Err(Errno::NOENT) if end - at > page_size() => {
                    end = at + page_size();
                    continue;
                }
                Err(errno) => return Err(errno),
            }
            end = range.end();
        }
        Ok(())
    }

    /// Returns whether the private anonymous mapping at the page `at` is
    /// registered with a userfaultfd, this or another. Changes nothing.
    /// `Some(false)` if this one is not open any more.
    ///
    /// It uses UFFDIO_CONTINUE (Linux 5.13), which never succeeds on private
    /// anonymous memory: it returns ENOENT where the memory is not registered,
    /// and EINVAL where it is. `None` on older kernels, which return EINVAL
    /// always.
    pub(crate) fn registration(&self, at: usize) -> Option<bool> {
        if self.features & u64::from(UFFD_FEATURE_MINOR_SHMEM) == 0 {
            return (!self.is_open()).then_some(false);
        }
        let mut request = uffdio_continue {
            range: uffdio(PageRange::between(at, at + page_size())),
            mode: 0,
            mapped: 0,
        };
        // SAFETY: the code belongs to this structure, which outlives the call;
        // on private anonymous memory the call never succeeds.
        let answer = self.run(|fd| unsafe {
            ioctl(fd, Updater::<CONTINUE, uffdio_continue>::new(&mut request))
        });
        Some(answer == Err(Errno::INVAL))
    }
}

/// Opens a userfaultfd and enables features, `UFFD_FEATURE_*`. Returns also the kernel's
/// feature set.
pub(super) fn open_with(features: u32) -> Result<(OwnedFd, u64), Errno> {
    let fd = from_call().or_else(|errno| from_device().map_err(|_| errno))?;
    let mut api = uffdio_api {
        api: u64::from(UFFD_API),
        features: u64::from(features),
        ioctls: 0,
    };
    // SAFETY: the code belongs to this structure, which outlives the call.
    unsafe { ioctl(&fd, Updater::<API, uffdio_api>::new(&mut api)) }?;
    Ok((fd, api.features))
}

fn from_call() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: opening one changes nothing by itself.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn from_device() -> Result<OwnedFd, Errno> {
    const NEW: Opcode = opcode::none(MAGIC, 0);
    let device = rustix::fs::open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = (OFlags::CLOEXEC.bits() | UFFD_USER_MODE_ONLY) as usize;
    // SAFETY: USERFAULTFD_IOC_NEW takes its flags by value and returns a
    // new descriptor, which nobody else owns.
    unsafe { ioctl(device, NewDescriptor::<NEW>(flags)) }
}

pub(super) fn identity(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

pub(super) fn uffdio(range: PageRange) -> uffdio_range {
    uffdio_range {
        start: range.start() as u64,
        len: range.len() as u64,
    }
}

/// An ioctl that takes an integer and returns a new descriptor.
struct NewDescriptor<const OPCODE: Opcode>(usize);

// SAFETY: used with USERFAULTFD_IOC_NEW only, which reads its argument as an
// integer and returns a descriptor that the caller owns.
unsafe impl<const OPCODE: Opcode> rustix::ioctl::Ioctl for NewDescriptor<OPCODE> {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    unsafe fn output_from_ptr(
        answer: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> Result<OwnedFd, Errno> {
        use std::os::fd::FromRawFd;
        // SAFETY: a successful call returns a new descriptor, which nobody else
        // owns.
        Ok(unsafe { OwnedFd::from_raw_fd(answer) })
    }
}
