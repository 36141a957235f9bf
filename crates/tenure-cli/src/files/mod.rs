//! `tenure warm`, `fincore`, `evict`, `keep`, `snapshot`, `restore`: files in the page cache.

mod complaints;
pub mod evict;
pub mod fincore;
mod holders;
pub mod keep;
mod picture;
pub mod snapshot;
mod walk;
pub mod warm;

use std::path::Path;
use std::process::ExitCode;

/// The status where only a part fitted, or something stayed.
const PARTLY: u8 = 3;

/// The status of a command that has complained, or has done a part.
fn status(has_failed: bool, is_partial: bool) -> ExitCode {
    match (has_failed, is_partial) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(PARTLY),
        (false, false) => ExitCode::SUCCESS,
    }
}

/// A share in percent, never above 100 (the last page may reach behind the end).
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (100.0 * part as f64 / whole as f64).min(100.0),
    }
}

/// A path in JSON, which has no other text than UTF-8.
pub fn path_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes => tenure_bench::text::bytes_text(bytes as f64),
    }
}
