//! Whether the main thread has called pthread_exit(3): then the process ends with its last
//! thread, and the heap's own must not be what keeps it.

use std::ffi::c_void;
use std::ptr::without_provenance;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::sys;

static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The key of the main thread's value, and whether there is one.
static KEY: AtomicU32 = AtomicU32::new(0);
static HAS_KEY: AtomicBool = AtomicBool::new(false);

/// Has [`has_ended`] follow the calling thread, if it is the main one.
pub(crate) fn watch() {
    unsafe extern "C" fn note_end(_: *mut c_void) {
        HAS_ENDED.store(true, Relaxed);
    }

    if !sys::is_main_thread() {
        return;
    }
    if !HAS_KEY.load(Relaxed) {
        let mut key = 0;
        // SAFETY: the function is never unloaded before the process ends.
        let is_made = unsafe { libc::pthread_key_create(&raw mut key, Some(note_end)) } == 0;
        KEY.store(key, Relaxed);
        HAS_KEY.store(is_made, Relaxed);
    }
    if HAS_KEY.load(Relaxed) {
        // A destructor runs for values other than null only. Without memory for the value the
        // process ends later.
        // SAFETY: the key was made above, and nobody follows the pointer.
        unsafe { libc::pthread_setspecific(KEY.load(Relaxed), without_provenance(1)) };
    }
}

/// Records in the child of a fork that the thread which called it is the main one.
pub(crate) fn reset() {
    HAS_ENDED.store(false, Relaxed);
    watch();
}

/// Returns whether the main thread has ended before the process.
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Relaxed)
}
