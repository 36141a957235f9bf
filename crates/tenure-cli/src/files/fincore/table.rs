//! Lines of equal columns: they are printed while files are found.

use std::sync::LazyLock;

use tenure_bench::text::printable;

use super::Row;
use crate::files::picture::{PARTS, draw};
use crate::files::{percent, size_text};

pub static HEADER: LazyLock<String> = LazyLock::new(|| {
    let names = [
        "resident",
        "size",
        "%",
        "dirty",
        "writeback",
        "evicted",
        "recently",
    ];
    columns(names.map(str::to_owned), "where", "file")
});

pub fn line(row: &Row) -> String {
    let share = percent(row.resident_bytes, row.len_bytes);
    // Something that is resident is not shown as 0, nor a gap as 100.
    let share = match share {
        0.0 => "0".to_owned(),
        100.0 => "100".to_owned(),
        share => format!("{:.0}", share.clamp(1.0, 99.0)),
    };
    let figure = |bytes: Option<u64>| bytes.map_or("-".to_owned(), size_text);
    let blocks = match (&row.blocks, row.files) {
        (Some(blocks), _) => draw(blocks),
        (None, Some(files)) => format!("sum of {files} files"),
        (None, None) => String::new(),
    };
    let figures = [
        size_text(row.resident_bytes),
        size_text(row.len_bytes),
        share,
        figure(row.dirty_bytes),
        figure(row.writeback_bytes),
        figure(row.evicted_bytes),
        figure(row.recently_evicted_bytes),
    ];
    let path = printable(&row.path.display().to_string());
    columns(figures, &blocks, &path)
}

fn columns(figures: [String; 7], blocks: &str, path: &str) -> String {
    let [resident, size, share, dirty, writeback, evicted, recently] = figures;
    let width = PARTS as usize;
    format!(
        "{resident:>9} {size:>9} {share:>3} {dirty:>9} {writeback:>9} {evicted:>9} \
         {recently:>9}  {blocks:<width$}  {path}"
    )
}
