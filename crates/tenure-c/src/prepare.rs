//! Preparation when the program, or the shared library, is loaded.

use std::panic::catch_unwind;

/// Runs [`tenure::prepare`] from `.init_array`. If one thread forks during the first call
/// of another, the child inherits that call half done and may wait for ever. A program
/// that is being loaded has no threads yet.
#[used]
#[unsafe(link_section = ".init_array")]
pub(crate) static AT_LOAD: extern "C" fn() = prepare;

extern "C" fn prepare() {
    // The first call that needs what failed here tries it again.
    let _ = catch_unwind(tenure::prepare);
}
