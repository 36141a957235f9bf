//! Lines on standard error.

use std::fmt::Arguments;
use std::io::{self, Write as _};

/// Prints a message, if standard error is open.
pub(crate) fn print(message: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "tenure: {message}");
}
