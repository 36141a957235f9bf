//! stats and version: what tenure has done, and which one it is.

use std::ffi::{c_char, c_int};
use std::ptr;

use tenure::Stats;

use crate::answer::{BAD_POINTER, done};

/// What tenure has done in this process since it began, or since it was forked. Calls
/// that failed are not counted. New fields come last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_stats {
    /// Ranges populated whole: how often.
    pub populate_calls: u64,
    /// The same: to how many bytes in all.
    pub populate_bytes: u64,
    /// Ranges locked, in either mode: how often.
    pub lock_calls: u64,
    /// The same: to how many bytes in all.
    pub lock_bytes: u64,
    /// Ranges unlocked: the parts that had such a lock. How often.
    pub unlock_calls: u64,
    /// The same: to how many bytes in all.
    pub unlock_bytes: u64,
    /// Calls of `tenure_mlockall()`.
    pub lock_all_calls: u64,
    /// Calls of `tenure_munlockall()`.
    pub unlock_all_calls: u64,
    /// Ranges freed lazily: how often.
    pub lazy_free_calls: u64,
    /// The same: to how many bytes in all.
    pub lazy_free_bytes: u64,
    /// Ranges marked volatile, anew or again: how often.
    pub mark_volatile_calls: u64,
    /// The same: to how many bytes in all.
    pub mark_volatile_bytes: u64,
    /// Ranges marked nonvolatile: the parts that were volatile. How often.
    pub mark_nonvolatile_calls: u64,
    /// The same: to how many bytes in all.
    pub mark_nonvolatile_bytes: u64,
    /// Volatile pages that the kernel took, in bytes, counted when tenure finds out: when
    /// they are marked nonvolatile.
    pub purged_by_kernel_bytes: u64,
    /// Volatile pages taken by `tenure_purge()`, in bytes.
    pub purged_on_request_bytes: u64,
    /// Volatile memory that counts as lost because its protection ended without tenure's
    /// doing: its userfaultfd was closed, or it was mapped over.
    pub unprotected_bytes: u64,
    /// What is volatile at the moment, in bytes.
    pub volatile_bytes: u64,
    /// Ranges unmapped; holes count: how often.
    pub munmap_calls: u64,
    /// The same: to how many bytes in all.
    pub munmap_bytes: u64,
    /// Ranges whose contents were discarded: how often.
    pub discard_calls: u64,
    /// The same: to how many bytes in all.
    pub discard_bytes: u64,
    /// Ranges punched out of shared memory (not in the C interface): how often.
    pub punch_calls: u64,
    /// The same: to how many bytes in all.
    pub punch_bytes: u64,
    /// Of `munmap` and `discard`: what was moved out of the way, for workers to free
    /// behind the caller. How often.
    pub carried_off_calls: u64,
    /// The same: to how many bytes in all.
    pub carried_off_bytes: u64,
    /// Of `munmap` and `discard`: what the caller itself freed, plainly.
    pub freed_by_caller_bytes: u64,
    /// How many threads were started to free memory.
    pub workers_started: u64,
    /// What was carried off and is not free yet, at the moment.
    pub pending_release_bytes: u64,
    /// Ranges freed at once by a policy (not in the C interface): how often.
    pub eager_free_calls: u64,
    /// The same: to how many bytes in all.
    pub eager_free_bytes: u64,
    /// Ranges freed lazily by a policy, and taken under severe pressure (not in the C
    /// interface): how often.
    pub given_back_calls: u64,
    /// The same: to how many bytes in all.
    pub given_back_bytes: u64,
    /// Volatile pages that tenure took under memory pressure.
    pub purged_under_pressure_bytes: u64,
    /// What of the volatile memory the kernel has been offered, at the moment.
    pub offered_bytes: u64,
    /// Volatile memory that could not be offered when it was due (locked or replaced
    /// behind tenure's back, no room for one more mapping); it stays. Ranges are tried
    /// again when they are marked again, buffers after seconds.
    pub not_offered_bytes: u64,
    /// What of the volatile memory the kernel cannot be offered for want of userfaultfd
    /// or MADV_POPULATE_WRITE, at the moment: all of it, or nothing. tenure alone takes
    /// it, under memory pressure.
    pub kept_from_kernel_bytes: u64,
}

/// A figure that is added there has to be added here.
const _: () = assert!(size_of::<tenure_stats>() == size_of::<Stats>());

impl From<Stats> for tenure_stats {
    fn from(stats: Stats) -> Self {
        Self {
            populate_calls: stats.populate.calls,
            populate_bytes: stats.populate.bytes,
            lock_calls: stats.lock.calls,
            lock_bytes: stats.lock.bytes,
            unlock_calls: stats.unlock.calls,
            unlock_bytes: stats.unlock.bytes,
            lock_all_calls: stats.lock_all_calls,
            unlock_all_calls: stats.unlock_all_calls,
            lazy_free_calls: stats.lazy_free.calls,
            lazy_free_bytes: stats.lazy_free.bytes,
            mark_volatile_calls: stats.mark_volatile.calls,
            mark_volatile_bytes: stats.mark_volatile.bytes,
            mark_nonvolatile_calls: stats.mark_nonvolatile.calls,
            mark_nonvolatile_bytes: stats.mark_nonvolatile.bytes,
            purged_by_kernel_bytes: stats.purged_by_kernel_bytes,
            purged_on_request_bytes: stats.purged_on_request_bytes,
            unprotected_bytes: stats.unprotected_bytes,
            volatile_bytes: stats.volatile_bytes,
            munmap_calls: stats.munmap.calls,
            munmap_bytes: stats.munmap.bytes,
            discard_calls: stats.discard.calls,
            discard_bytes: stats.discard.bytes,
            punch_calls: stats.punch.calls,
            punch_bytes: stats.punch.bytes,
            carried_off_calls: stats.carried_off.calls,
            carried_off_bytes: stats.carried_off.bytes,
            freed_by_caller_bytes: stats.freed_by_caller_bytes,
            workers_started: stats.workers_started,
            pending_release_bytes: stats.pending_release_bytes,
            eager_free_calls: stats.eager_free.calls,
            eager_free_bytes: stats.eager_free.bytes,
            given_back_calls: stats.given_back.calls,
            given_back_bytes: stats.given_back.bytes,
            purged_under_pressure_bytes: stats.purged_under_pressure_bytes,
            offered_bytes: stats.offered_bytes,
            not_offered_bytes: stats.not_offered_bytes,
            kept_from_kernel_bytes: stats.kept_from_kernel_bytes,
        }
    }
}

/// Tells what tenure has done in this process.
///
/// `*out` gets the figures; `out` must not be NULL. `size_of_out` is `sizeof(*out)`, what
/// the program was built with: of a smaller structure only that much is written, and what
/// this version of tenure does not know is set to zeros. Each figure is exact; while other
/// threads work, two figures may be from two moments. A child after `fork()` counts from
/// zero.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EFAULT`: `out` is NULL.
///
/// # Notes
///
/// `tenure stat PID` shows the figures of another process.
///
/// # See also
///
/// tenure-stat(1), tenure(7)
///
/// # Safety
///
/// `out` is NULL or has room for `size_of_out` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_stats(out: *mut tenure_stats, size_of_out: usize) -> c_int {
    done(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        let stats = tenure_stats::from(tenure::stats());
        let known = size_of_out.min(size_of::<tenure_stats>());
        let bytes = out.cast::<u8>();
        // SAFETY: `out` has room for `size_of_out` bytes, and `known` of them are in
        // `stats`, too.
        unsafe {
            ptr::copy_nonoverlapping((&raw const stats).cast(), bytes, known);
            bytes.add(known).write_bytes(0, size_of_out - known);
        }
        Ok(())
    })
}

/// Tells the version of the library that the program runs with.
///
/// # Return value
///
/// Text such as "0.1.0", never NULL. It is tenure's and stays valid; do not free it.
///
/// # See also
///
/// tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
