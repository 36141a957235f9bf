//! Preparation when the program, or the shared library, is loaded.

use std::panic::catch_unwind;

/// Runs [`tenure::prepare`] from `.init_array`, which registers the fork handlers while the
/// program has one thread. tenure's own entry there does not suffice: from the static
/// library a linker takes only objects whose symbols are used, so [`answer`](crate::answer)
/// names this one.
#[used]
#[unsafe(link_section = ".init_array")]
pub(crate) static AT_LOAD: extern "C" fn() = prepare;

extern "C" fn prepare() {
    // The first call that needs what failed here tries it again.
    let _ = catch_unwind(tenure::prepare);
}
