//! Where the library is that goes under programs.

use std::env::consts::ARCH;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

const NAME: &str = "libtenure_preload.so";

/// Where it may be, seen from the command's own folder: installed, of which distributions
/// have a folder for each processor, or as cargo builds it (for tests, which are built last,
/// below `deps`).
fn places() -> [String; 4] {
    let multiarch = format!("../lib/{ARCH}-linux-gnu");
    [&multiarch, "../lib", "deps", "."].map(str::to_owned)
}

/// Finds the library by where this command is.
pub fn find() -> Result<PathBuf> {
    let command = std::env::current_exe().and_then(std::fs::canonicalize);
    let command = command.context("looking for this command's file")?;
    let library = find_beside(&command)?;
    if library.as_os_str().as_bytes().iter().any(is_special) {
        bail!(
            "the loader cannot be given {}: a space, a colon or a dollar sign in a path means \
             something else to it; move tenure elsewhere",
            library.display()
        );
    }
    Ok(library)
}

fn find_beside(command: &Path) -> Result<PathBuf> {
    let folder = command.parent().unwrap_or(Path::new("/"));
    let places = places().map(|place| folder.join(place).join(NAME));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    let [_, installed, _, beside] = &places;
    found.with_context(|| {
        format!(
            "there is no {NAME}: neither {} nor {}",
            installed.display(),
            beside.display()
        )
    })
}

/// The characters that LD_PRELOAD cannot have in a path.
fn is_special(byte: &u8) -> bool {
    matches!(byte, b':' | b'$') || byte.is_ascii_whitespace()
}

#[cfg(test)]
#[path = "../tests/unit/library.rs"]
mod tests;
