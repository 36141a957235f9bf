//! Retrying calls for which the kernel refuses memory or addresses while released
//! memory has not been freed yet.

use super::Errno;
use super::once_box::OnceBox;

static FREE: OnceBox<fn() -> bool> = OnceBox::new();

/// Sets the function that frees pending memory, and returns whether there was
/// any.
pub(crate) fn set_free(free: fn() -> bool) {
    FREE.get_or_init(|| free);
}

/// Frees pending memory, for some seconds at most. Returns whether there was any.
pub(crate) fn free() -> bool {
    FREE.get().is_some_and(|free| free())
}

/// Makes a call, and once more if it fails with ENOMEM while memory is pending.
pub(crate) fn retry<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(Errno::NOMEM) if free() => call(),
        answer => answer,
    }
}
