//! The published figures of populate: 5.11, one thread, the mean of 10.

use super::{Here, Published};
use crate::bench::Unit;

/// Milliseconds of a mapping: touching one byte of each page by reading, by
/// writing, by both; MAP_POPULATE; MADV_POPULATE_READ; MADV_POPULATE_WRITE.
type Milliseconds = [f64; 6];

/// What is populated, and what is called so in a record: there and in quick sizes.
type Kind = (&'static str, Milliseconds);

const LARGE: [Kind; 6] = [
    (
        "private anonymous",
        [240.9, 712.9, 1027.6, 571.8, 120.2, 570.8],
    ),
    (
        "private memfd 4 KiB",
        [1054.7, 145.5, 202.3, 162.6, 914.7, 161.3],
    ),
    (
        "private memfd 2 MiB",
        [351.8, 352.4, 352.8, 351.5, 351.6, 351.9],
    ),
    (
        "shared anonymous",
        [229.3, 479.0, 234.5, 161.6, 160.9, 252.7],
    ),
    (
        "shared memfd 4 KiB",
        [1052.8, 929.2, 1074.5, 915.7, 915.0, 787.4],
    ),
    (
        "shared memfd 2 MiB",
        [353.6, 353.2, 353.2, 353.7, 353.5, 352.8],
    ),
];
const MIDDLE: [Kind; 4] = [
    (
        "private anonymous",
        [7.517, 22.503, 33.186, 18.381, 3.952, 18.354],
    ),
    (
        "private memfd 4 KiB",
        [34.300, 4.659, 6.531, 5.219, 29.744, 5.244],
    ),
    (
        "shared anonymous",
        [7.295, 15.234, 7.460, 5.196, 5.190, 8.245],
    ),
    (
        "shared memfd 4 KiB",
        [34.412, 30.586, 35.157, 29.643, 29.691, 25.790],
    ),
];
const SMALL: [Kind; 4] = [
    (
        "private anonymous",
        [0.159, 0.244, 0.383, 0.167, 0.064, 0.165],
    ),
    (
        "private memfd 4 KiB",
        [0.401, 0.056, 0.075, 0.057, 0.337, 0.056],
    ),
    (
        "shared anonymous",
        [0.071, 0.181, 0.081, 0.069, 0.069, 0.115],
    ),
    (
        "shared memfd 4 KiB",
        [0.401, 0.351, 0.414, 0.338, 0.339, 0.279],
    ),
];
/// The sizes, and the tables of a record that have the same or the nearest size;
/// the last that is there counts.
const SIZES: [(&str, &[&str], &[Kind]); 3] = [
    ("2 MiB", &["2 MiB"], &SMALL),
    ("128 MiB", &["64 MiB", "128 MiB"], &MIDDLE),
    ("4 GiB", &["4 GiB"], &LARGE),
];

/// An older way, its place in [`Milliseconds`], and the place of the newer way.
type Comparison = (&'static str, &'static str, &'static str, usize, usize);

const COMPARISONS: [Comparison; 5] = [
    ("Read", "touch, Read", "POPULATE_READ", 0, 4),
    ("Read", "MAP_POPULATE", "POPULATE_READ", 3, 4),
    ("Write", "touch, Write", "POPULATE_WRITE", 1, 5),
    ("Write", "touch, Read+Write", "POPULATE_WRITE", 2, 5),
    ("Write", "MAP_POPULATE", "POPULATE_WRITE", 3, 5),
];

pub fn published() -> Vec<Published> {
    let mut all = Vec::new();
    for (size, sizes_here, kinds) in SIZES {
        for comparison in COMPARISONS {
            for &(kind, times) in kinds {
                all.push(of(size, sizes_here, kind, times, comparison));
            }
        }
    }
    all
}

fn of(
    size: &str,
    sizes_here: &'static [&'static str],
    kind: &'static str,
    times: Milliseconds,
    (access, older, newer, older_place, newer_place): Comparison,
) -> Published {
    Published {
        what: format!("{size}, {kind}: {newer} for {older}"),
        older: times[older_place] / 1e3,
        newer: times[newer_place] / 1e3,
        unit: Unit::Seconds,
        here: Here {
            is_case: Box::new(move |case| {
                let is_size = |size: &&str| case.table == format!("{size}, {access}");
                // The quick sizes have base pages only, and do not say so.
                let is_kind = case.name == kind || format!("{} 4 KiB", case.name) == kind;
                is_kind && sizes_here.iter().any(is_size)
            }),
            figure: "time",
            older,
            newer: Some(newer),
            has_tenure: true,
        },
    }
}
