//! What is done when the program, or the library, is loaded.

use std::panic::catch_unwind;

/// Makes what the verbs would make at their first use. A fork by one thread in the very
/// moment of another thread's first call would leave the child with half of it, and
/// waiting for ever; when a program is loaded it has no threads yet.
#[used]
#[unsafe(link_section = ".init_array")]
pub(crate) static AT_LOAD: extern "C" fn() = prepare;

extern "C" fn prepare() {
    // What failed is tried again by who needs it.
    let _ = catch_unwind(tenure::prepare);
}
