//! What the running kernel, and what confines this process, can do.

use std::sync::OnceLock;

use linux_raw_sys::general::{
    MADV_DONTNEED_LOCKED, MADV_FREE, MADV_GUARD_INSTALL, MADV_POPULATE_WRITE, UFFD_FEATURE_SIGBUS,
};
use rustix::io::Errno;

use super::cgroup::{self, MemoryCgroup};
use super::map::{self, Backing};
use super::reservation::Reservation;
use super::userfaultfd::Userfaultfd;
use super::{last_errno, lock, page_size, pagemap, vma};
use crate::PageRange;

/// What this kernel can do, as far as tenure builds on it.
///
/// Each `Result` says that a feature is there, or what the kernel answered when
/// it was tried. Asked once for each process, by trying: what a version number
/// promises, a container may refuse. A process that has no descriptor left at that
/// moment (EMFILE) does without until it ends; [`prepare`](fn@crate::prepare) asks early.
///
/// The environment variable `TENURE_WITHOUT` names features, separated by
/// commas, that tenure then does without, as on a kernel that lacks them:
/// `TENURE_WITHOUT=madv_populate,madv_dontneed_locked,madv_guard,procmap_query,pagemap_scan,mremap_dontunmap,userfaultfd,memfd_secret,smaps_lock_mode`.
/// It is read once, and shows how a program does on older kernels.
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
    /// `userfaultfd` for faults from user mode (Linux 5.11); the value is what
    /// it can do, `UFFD_FEATURE_*`.
    pub userfaultfd: Result<u64, Errno>,
    /// `memfd_secret` (Linux 5.14; before 6.5 only with `secretmem.enable=1` on
    /// the kernel's command line).
    pub memfd_secret: Result<(), Errno>,
    /// `PAGEMAP_SCAN` (Linux 6.7).
    pub pagemap_scan: Result<(), Errno>,
    /// `PROCMAP_QUERY` (Linux 6.11).
    pub procmap_query: Result<(), Errno>,
    /// How memory is locked, told by `/proc/self/smaps` (Linux 6.11).
    pub smaps_lock_mode: Result<(), Errno>,
    /// Pressure stall information for memory (Linux 4.20; may be switched off).
    pub psi: Result<(), Errno>,
    /// Which cgroup version controls this process's memory.
    pub memory_cgroup: MemoryCgroup,
}

impl Features {
    /// Asks the kernel, the first time; remembers the answer for the process.
    ///
    /// ```
    /// let features = tenure::Features::get();
    /// println!("volatile memory: {}", features.sigbus_on_missing());
    /// ```
    pub fn get() -> &'static Self {
        static FEATURES: OnceLock<Features> = OnceLock::new();
        FEATURES.get_or_init(|| Self::probe(&std::env::var("TENURE_WITHOUT").unwrap_or_default()))
    }

    /// Whether userfaultfd can turn an access to a missing page into SIGBUS
    /// (Linux 4.14), which volatile memory is built on.
    pub fn sigbus_on_missing(&self) -> bool {
        self.userfaultfd
            .is_ok_and(|features| features & u64::from(UFFD_FEATURE_SIGBUS) != 0)
    }

    fn probe(without: &str) -> Self {
        let wanted = |name| match without.split(',').any(|other| other.trim() == name) {
            true => Err(Errno::NOSYS),
            false => Ok(()),
        };
        Self {
            madv_populate: wanted("madv_populate").and_then(|()| knows_advice(MADV_POPULATE_WRITE)),
            madv_free: knows_advice(MADV_FREE),
            madv_dontneed_locked: wanted("madv_dontneed_locked")
                .and_then(|()| knows_advice(MADV_DONTNEED_LOCKED)),
            madv_guard: wanted("madv_guard").and_then(|()| knows_advice(MADV_GUARD_INSTALL)),
            mremap_dontunmap: wanted("mremap_dontunmap").and_then(|()| probe_dontunmap()),
            userfaultfd: wanted("userfaultfd")
                .and_then(|()| Userfaultfd::open())
                .map(|uffd| uffd.features()),
            memfd_secret: wanted("memfd_secret")
                .and_then(|()| map::memfd_secret(page_size()))
                .map(drop),
            pagemap_scan: wanted("pagemap_scan").and_then(|()| pagemap::probe_scan()),
            procmap_query: wanted("procmap_query").and_then(|()| vma::probe_query()),
            smaps_lock_mode: wanted("smaps_lock_mode").and_then(|()| tells_lock_mode()),
            psi: rustix::fs::access("/proc/pressure/memory", rustix::fs::Access::READ_OK),
            memory_cgroup: cgroup::memory_cgroup(),
        }
    }
}

/// The kernel checks that it knows an advice before it looks at the length:
/// with no bytes nothing else happens.
fn knows_advice(advice: u32) -> Result<(), Errno> {
    // SAFETY: a range of no bytes has no contents to change. (By libc, for
    // rustix has no name for the guard advice.)
    match unsafe { libc::madvise(std::ptr::null_mut(), 0, advice as i32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// By the version: to try would take a lock, and a look at every page of the process.
pub(super) fn tells_lock_mode() -> Result<(), Errno> {
    let kernel = procfs::sys::kernel::Version::current().map_err(|_| Errno::NOSYS)?;
    match (kernel.major, kernel.minor) >= (6, 11) {
        true => Ok(()),
        false => Err(Errno::NOSYS),
    }
}

fn probe_dontunmap() -> Result<(), Errno> {
    let from = map::map(Backing::Anonymous, page_size(), false, true)?;
    let room = Reservation::new(2 * page_size()).map_err(|(_, errno)| errno);
    let answer = room.and_then(|mut room| {
        let start = room.range().start();
        let to = PageRange::between(start, start + page_size());
        // Under mlockall(MCL_FUTURE) both are locked, and the kernel (6.18) goes
        // on charging for a locked page that was moved away like this.
        let unlocked = lock::munlock(from).and_then(|()| lock::munlock(to));
        // SAFETY: both pages were mapped here and nobody uses them.
        let moved = unlocked.and_then(|()| unsafe { map::move_pages_away(from, to.start()) });
        if moved.is_err() {
            // To find out whose it is takes what is being found out here.
            room.give(to);
        }
        // SAFETY: as above.
        unsafe { room.unmap() };
        moved
    });
    // SAFETY: as above.
    unsafe { map::unmap(from) }.and(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_advice_is_unknown() {
        assert_eq!(knows_advice(0x7fff), Err(Errno::INVAL));
        assert_eq!(knows_advice(linux_raw_sys::general::MADV_DONTNEED), Ok(()));
    }

    #[test]
    fn does_without_what_it_is_told_to() {
        let features = Features::probe("pagemap_scan, madv_populate");
        assert_eq!(features.madv_populate, Err(Errno::NOSYS));
        assert_eq!(features.pagemap_scan, Err(Errno::NOSYS));
        assert_eq!(features.madv_free, Ok(()));
    }

    #[test]
    fn agrees_with_the_kernel_version() {
        let release = procfs::sys::kernel::Version::current().unwrap();
        let release = (release.major, release.minor);
        let features = Features::probe("");
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
        if since(6, 7) {
            assert_eq!(features.pagemap_scan, Ok(()));
        }
        if since(6, 11) {
            assert_eq!(features.procmap_query, Ok(()));
        }
        assert_eq!(features.madv_guard.is_ok(), since(6, 13));
    }
}
