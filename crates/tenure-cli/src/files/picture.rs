//! A line of blocks that shows where in a file the resident pages are.

use std::fs::File;

use tenure::files::{FileResidency, residency};
use tenure::page_size;

use super::percent;

/// How many parts of the file the line shows.
pub const PARTS: u64 = 40;

/// Returns the resident share of each part, in percent; `None` where the kernel does not tell.
/// A short file has a part for each page.
pub fn blocks(file: &File, len: u64, all: FileResidency) -> Option<Vec<f64>> {
    let page = page_size() as u64;
    let pages = len.div_ceil(page);
    let parts = pages.min(PARTS);
    // Most files are wholly there, or not at all: that needs no further look.
    if all.resident_bytes == 0 || all.resident_bytes >= pages * page {
        let share = percent(all.resident_bytes, pages * page);
        return Some(vec![share; parts as usize]);
    }
    let part = |index: u64| {
        let start = pages * index / parts * page;
        let end = pages * (index + 1) / parts * page;
        let found = residency(file, start..end).ok()?;
        Some(percent(found.resident_bytes, end - start))
    };
    (0..parts).map(part).collect()
}

/// Draws the shares, a character for each.
pub fn draw(blocks: &[f64]) -> String {
    let shade = |share: &f64| match *share {
        0.0 => '·',
        ..34.0 => '░',
        34.0..67.0 => '▒',
        67.0..100.0 => '▓',
        _ => '█',
    };
    blocks.iter().map(shade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_darker_the_more_is_resident() {
        assert_eq!(draw(&[0.0, 0.1, 50.0, 99.9, 100.0]), "·░▒▓█");
        assert_eq!(draw(&[]), "");
    }

    #[test]
    fn blocks_of_short_file_are_its_pages() {
        let file = tempfile::tempfile().unwrap();
        let len = 3 * page_size() as u64 - 5;
        file.set_len(len).unwrap();
        assert_eq!(blocks(&file, len, FileResidency::NONE), Some(vec![0.0; 3]));
        let mut whole = FileResidency::NONE;
        whole.resident_bytes = 3 * page_size() as u64;
        assert_eq!(blocks(&file, len, whole), Some(vec![100.0; 3]));
        assert_eq!(blocks(&file, 0, FileResidency::NONE), Some(vec![]));
    }
}
