//! The arguments of the commands for files in the page cache.

mod evict;
mod fincore;
mod keep;
mod snapshot;
mod tree;
mod warm;

pub use self::evict::EvictArguments;
pub use self::fincore::FincoreArguments;
pub use self::keep::KeepArguments;
pub use self::snapshot::{RestoreArguments, SnapshotArguments};
pub use self::tree::TreeArguments;
pub use self::warm::WarmArguments;

use std::ops::Range;

use tenure_options::parse_size;

/// The exit statuses of the commands that may do a part of their work.
const EXIT_STATUS: &str = "\
Exit status:
  0  done (also when the reader of the output has closed it)
  1  something could not be read; a line on standard error names it, the rest is done
  2  the command line was wrong
  3  only a part fitted, or stayed: the output says what and why";

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    Ok(bytes as u64)
}

fn budget(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("a budget of nothing leaves nothing to do: give a size".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses `START..END`, either of which may be missing.
fn range(text: &str) -> Result<Range<u64>, String> {
    let form = || "give a range of bytes, such as 1G..2G, ..512M or 1G..".to_owned();
    let (start, end) = text.split_once("..").ok_or_else(form)?;
    let side = |text: &str, default| match text {
        "" => Ok(default),
        text => size(text),
    };
    let range = side(start, 0)?..side(end, u64::MAX)?;
    match range.is_empty() {
        true => Err("the range is empty".to_owned()),
        false => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_sizes_with_units_on_either_side() {
        assert_eq!(range("1K..2K"), Ok(1024..2048));
        assert_eq!(range("..1M"), Ok(0..1 << 20));
        assert_eq!(range("1G.."), Ok(1 << 30..u64::MAX));
        assert_eq!(range(".."), Ok(0..u64::MAX));
        for wrong in ["", "1K", "2K..1K", "1K..1K", "a..b", "-1..2"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn budget_of_nothing_is_refused() {
        assert_eq!(budget("1.5G"), Ok(3 << 29));
        assert!(budget("0").is_err() && budget("x").is_err());
    }
}
