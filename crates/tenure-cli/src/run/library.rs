//! Where the library is that goes under programs.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{FAILED, Refusal};

const NAME: &str = "libtenure_preload.so";

/// Where it may be, seen from the command's own folder: installed, or as cargo builds
/// it (for tests, which are built last, below `deps`).
const PLACES: [&str; 3] = ["../lib", "deps", "."];

/// Finds the library by where this command is.
pub(super) fn find() -> Result<PathBuf, Refusal> {
    let command = std::env::current_exe().and_then(std::fs::canonicalize);
    let command = command.map_err(|error| {
        Refusal::new(FAILED, format!("looking for this command's file: {error}"))
    })?;
    let library = find_beside(&command)?;
    if library.as_os_str().as_bytes().iter().any(is_special) {
        let message = format!(
            "the loader cannot be given {}: a space, a colon or a dollar sign in a path means \
             something else to it; move tenure elsewhere",
            library.display()
        );
        return Err(Refusal::new(FAILED, message));
    }
    Ok(library)
}

fn find_beside(command: &Path) -> Result<PathBuf, Refusal> {
    let folder = command.parent().unwrap_or(Path::new("/"));
    let places = PLACES.map(|place| folder.join(place).join(NAME));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let [installed, _, beside] = places;
        let message = format!(
            "there is no {NAME}: neither {} nor {}",
            installed.display(),
            beside.display()
        );
        Refusal::new(FAILED, message)
    })
}

/// What LD_PRELOAD cannot have in a path.
fn is_special(byte: &u8) -> bool {
    matches!(byte, b':' | b'$') || byte.is_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_found_where_it_is_installed_and_where_it_is_built() {
        for place in PLACES {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("bin");
            fs::create_dir_all(&folder).unwrap();
            fs::create_dir_all(folder.join(place)).unwrap();
            let command = folder.join("tenure");
            let refusal = find_beside(&command).unwrap_err();
            assert_eq!(refusal.status, FAILED);
            assert!(refusal.message.contains(NAME), "{}", refusal.message);
            let library = folder.join(place).join(NAME);
            fs::write(&library, "").unwrap();
            let found = find_beside(&command).unwrap();
            assert_eq!(found, library.canonicalize().unwrap());
        }
    }
}
