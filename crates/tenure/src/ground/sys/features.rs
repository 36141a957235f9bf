//! Detection of what the running kernel offers, and what containers and seccomp
//! filters deny.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use linux_raw_sys::general::{
    MADV_DONTNEED_LOCKED, MADV_FREE, MADV_GUARD_INSTALL, MADV_POPULATE_WRITE, UFFD_FEATURE_SIGBUS,
};
use rustix::io::Errno;

use super::cgroup::{self, MemoryCgroup};
use super::map::{self, Backing};
use super::reservation::Reservation;
use super::userfaultfd::Userfaultfd;
use super::{fork, last_errno, lock, page_cache, page_size, pagemap, vma};
use crate::PageRange;

/// The kernel features that tenure builds on.
///
/// Each `Result` says that a feature is available, or what the kernel answered
/// when it was tried. Features are probed by trying them, once for each
/// process: a container may deny what a version number promises. Where a
/// descriptor or memory is short (EMFILE, ENFILE, ENOMEM), the next use of the
/// feature probes it again; [`prepare`](fn@crate::prepare) probes early.
///
/// The environment variable `TENURE_WITHOUT` names features, separated by
/// commas, that tenure then does without, as on a kernel that lacks them:
/// `TENURE_WITHOUT=madv_populate,madv_dontneed_locked,madv_guard,procmap_query,pagemap_scan,mremap_dontunmap,userfaultfd,memfd_secret,smaps_lock_mode,cachestat`.
/// tenure reads it once. It shows how a program behaves on older kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (Linux 5.14).
    pub madv_populate: Result<(), Errno>,
    /// `MADV_FREE` (Linux 4.5).
    pub madv_free: Result<(), Errno>,
    /// `MADV_DONTNEED_LOCKED` (Linux 5.18).
    pub madv_dontneed_locked: Result<(), Errno>,
    /// `MADV_GUARD_INSTALL` (Linux 6.13).
    pub madv_guard: Result<(), Errno>,
    /// `MREMAP_DONTUNMAP` (Linux 5.7).
    pub mremap_dontunmap: Result<(), Errno>,
    /// `userfaultfd` for faults from user mode (Linux 5.11); the value is its
    /// feature set, `UFFD_FEATURE_*`.
    pub userfaultfd: Result<u64, Errno>,
    /// `memfd_secret` (Linux 5.14; before 6.5 only with `secretmem.enable=1` on
    /// the kernel's command line).
    pub memfd_secret: Result<(), Errno>,
    /// `PAGEMAP_SCAN` (Linux 6.7).
    pub pagemap_scan: Result<(), Errno>,
    /// `PROCMAP_QUERY` (Linux 6.11).
    pub procmap_query: Result<(), Errno>,
    /// The lock mode in `/proc/self/smaps` (Linux 6.11).
    pub smaps_lock_mode: Result<(), Errno>,
    /// `cachestat` (Linux 6.5).
    pub cachestat: Result<(), Errno>,
    /// Pressure stall information (PSI) for memory (Linux 4.20; may be switched
    /// off).
    pub psi: Result<(), Errno>,
    /// The cgroup version that controls this process's memory.
    pub memory_cgroup: MemoryCgroup,
}

impl Features {
    /// Returns the features: probes the kernel at the first call, and caches
    /// the answers for the process, except that something was short.
    ///
    /// ```
    /// let features = tenure::Features::get();
    /// println!("volatile memory: {}", features.sigbus_on_missing());
    /// ```
    pub fn get() -> &'static Self {
        static LATEST: AtomicPtr<Features> = AtomicPtr::new(ptr::null_mut());
        // SAFETY: `update` stores pointers to values that live as long as the process.
        match unsafe { LATEST.load(Ordering::Acquire).as_ref() } {
            // A child's fork handler neither allocates nor frees.
            Some(known) if known.unanswered() == 0 || fork::is_in_child_handler() => known,
            known => Self::update(&LATEST, known),
        }
    }

    /// Returns whether userfaultfd can turn an access to a missing page into
    /// SIGBUS (Linux 4.14), which volatile memory needs.
    pub fn sigbus_on_missing(&self) -> bool {
        self.userfaultfd
            .is_ok_and(|features| features & u64::from(UFFD_FEATURE_SIGBUS) != 0)
    }

    /// Probes what is not answered yet.
    #[cold]
    fn update(latest: &AtomicPtr<Self>, known: Option<&'static Self>) -> &'static Self {
        let without = std::env::var("TENURE_WITHOUT").unwrap_or_default();
        let now = Self::probe(&without, known);
        match known {
            Some(known) if now.unanswered() >= known.unanswered() => known,
            // Leaked, because callers keep references: once for each feature at most.
            _ => {
                let now = Box::leak(Box::new(now));
                latest.store(now, Ordering::Release);
                now
            }
        }
    }

    /// Returns how many features the kernel could not tell about.
    fn unanswered(&self) -> usize {
        let answers = [
            self.madv_populate.err(),
            self.madv_free.err(),
            self.madv_dontneed_locked.err(),
            self.madv_guard.err(),
            self.mremap_dontunmap.err(),
            self.userfaultfd.err(),
            self.memfd_secret.err(),
            self.pagemap_scan.err(),
            self.procmap_query.err(),
            self.smaps_lock_mode.err(),
            self.cachestat.err(),
            self.psi.err(),
        ];
        answers.into_iter().flatten().filter(is_transient).count()
    }

    fn probe(without: &str, known: Option<&Self>) -> Self {
        let allowed = |name| match without.split(',').any(|other| other.trim() == name) {
            true => Err(Errno::NOSYS),
            false => Ok(()),
        };
        Self {
            madv_populate: answer(known.map(|known| known.madv_populate), || {
                allowed("madv_populate")?;
                probe_advice(MADV_POPULATE_WRITE)
            }),
            madv_free: answer(known.map(|known| known.madv_free), || {
                probe_advice(MADV_FREE)
            }),
            madv_dontneed_locked: answer(known.map(|known| known.madv_dontneed_locked), || {
                allowed("madv_dontneed_locked")?;
                probe_advice(MADV_DONTNEED_LOCKED)
            }),
            madv_guard: answer(known.map(|known| known.madv_guard), || {
                allowed("madv_guard")?;
                probe_advice(MADV_GUARD_INSTALL)
            }),
            mremap_dontunmap: answer(known.map(|known| known.mremap_dontunmap), || {
                allowed("mremap_dontunmap")?;
                probe_dontunmap()
            }),
            userfaultfd: answer(known.map(|known| known.userfaultfd), || {
                allowed("userfaultfd")?;
                Userfaultfd::open().map(|uffd| uffd.features())
            }),
            memfd_secret: answer(known.map(|known| known.memfd_secret), || {
                allowed("memfd_secret")?;
                map::memfd_secret(page_size()).map(drop)
            }),
            pagemap_scan: answer(known.map(|known| known.pagemap_scan), || {
                allowed("pagemap_scan")?;
                pagemap::probe_scan()
            }),
            procmap_query: answer(known.map(|known| known.procmap_query), || {
                allowed("procmap_query")?;
                vma::probe_query()
            }),
            smaps_lock_mode: answer(known.map(|known| known.smaps_lock_mode), || {
                allowed("smaps_lock_mode")?;
                probe_lock_mode()
            }),
            cachestat: answer(known.map(|known| known.cachestat), || {
                allowed("cachestat")?;
                page_cache::probe_cachestat()
            }),
            psi: answer(known.map(|known| known.psi), || {
                rustix::fs::access("/proc/pressure/memory", rustix::fs::Access::READ_OK)
            }),
            memory_cgroup: match known.map(|known| known.memory_cgroup) {
                None | Some(MemoryCgroup::None) => cgroup::memory_cgroup(),
                Some(version) => version,
            },
        }
    }
}

/// Returns the known answer, or that of `probe` if there is none.
fn answer<T: Copy>(
    known: Option<Result<T, Errno>>,
    probe: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match known {
        Some(Ok(value)) => Ok(value),
        Some(Err(errno)) if !is_transient(&errno) => Err(errno),
        _ => probe(),
    }
}

/// Returns whether the error says that a resource was short, and nothing about the
/// kernel.
fn is_transient(errno: &Errno) -> bool {
    matches!(*errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Checks whether the kernel knows an advice. It checks the advice before the
/// length, so a call on zero bytes has no other effect.
fn probe_advice(advice: u32) -> Result<(), Errno> {
    // SAFETY: a range of zero bytes has no contents to change. (By libc,
    // because rustix has no name for the guard advice.)
    match unsafe { libc::madvise(std::ptr::null_mut(), 0, advice as i32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Checks by the kernel version: a trial would have to lock a page, and to walk
/// every page of the process.
pub(super) fn probe_lock_mode() -> Result<(), Errno> {
    let kernel = procfs::sys::kernel::Version::current().map_err(|error| match error {
        procfs::ProcError::Io(error, _) => Errno::from_io_error(&error).unwrap_or(Errno::NOSYS),
        _ => Errno::NOSYS,
    })?;
    match (kernel.major, kernel.minor) >= (6, 11) {
        true => Ok(()),
        false => Err(Errno::NOSYS),
    }
}

fn probe_dontunmap() -> Result<(), Errno> {
    let from = map::map(Backing::Anonymous, page_size(), false, true)?;
    let reservation = Reservation::new(2 * page_size()).map_err(|(_, errno)| errno);
    let answer = reservation.and_then(|mut reservation| {
        let start = reservation.range().start();
        let to = PageRange::between(start, start + page_size());
        // Under mlockall(MCL_FUTURE) both pages are locked, and the kernel
        // (6.18) goes on charging for a locked page that was moved away like
        // this.
        let unlocked = lock::munlock(from).and_then(|()| lock::munlock(to));
        // SAFETY: both pages were mapped above, and nobody else uses them.
        let moved = unlocked.and_then(|()| unsafe { map::move_pages_away(from, to.start()) });
        if moved.is_err() {
            // The check of whose addresses these are now would need the
            // features that are being probed.
            reservation.disown(to);
        }
        // SAFETY: reserved above, and nobody else uses it.
        unsafe { reservation.unmap() };
        moved
    });
    // SAFETY: mapped above, and nobody else uses it.
    unsafe { map::unmap(from) }.and(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_unknown_advice_is_einval() {
        assert_eq!(probe_advice(0x7fff), Err(Errno::INVAL));
        assert_eq!(probe_advice(linux_raw_sys::general::MADV_DONTNEED), Ok(()));
    }

    #[test]
    fn probe_with_disabled_features_reports_enosys() {
        let features = Features::probe("pagemap_scan, madv_populate", None);
        assert_eq!(features.madv_populate, Err(Errno::NOSYS));
        assert_eq!(features.pagemap_scan, Err(Errno::NOSYS));
        assert_eq!(features.madv_free, Ok(()));
    }

    #[test]
    fn probe_agrees_with_kernel_version() {
        let release = procfs::sys::kernel::Version::current().unwrap();
        let release = (release.major, release.minor);
        let features = Features::probe("", None);
        let since = |major, minor| release >= (major, minor);
        if since(4, 5) {
            assert_eq!(features.madv_free, Ok(()));
        }
        if since(5, 7) {
            assert_eq!(features.mremap_dontunmap, Ok(()));
        }
        if since(5, 14) {
            assert_eq!(features.madv_populate, Ok(()));
        }
        assert!(since(5, 14) || features.memfd_secret.is_err());
        if since(5, 18) {
            assert_eq!(features.madv_dontneed_locked, Ok(()));
        }
        if since(6, 5) {
            assert_eq!(features.cachestat, Ok(()));
        }
        if since(6, 7) {
            assert_eq!(features.pagemap_scan, Ok(()));
        }
        if since(6, 11) {
            assert_eq!(features.procmap_query, Ok(()));
        }
        assert_eq!(features.madv_guard.is_ok(), since(6, 13));
    }
}
