//! The published figures of lock, lazy free, volatile and free.

use super::{Here, Published};
use crate::bench::Unit;

/// Lock on fault, 4.2-rc1: 15,000,000 reads at random in a file of 5 GiB; set up
/// and reads in milliseconds, the mean of 20.
const LOCK: [(&str, &str, f64, f64); 5] = [
    (
        "mlock of the whole range",
        "mlock of the whole",
        8228.666,
        8274.257,
    ),
    (
        "mlock before each access",
        "mlock before each read",
        0.113,
        90993.552,
    ),
    (
        "a SIGSEGV handler, 1 page",
        "SIGSEGV handler, 1 page",
        0.058,
        69488.073,
    ),
    (
        "a SIGSEGV handler, 8 pages",
        "SIGSEGV handler, 8 pages",
        0.068,
        38204.116,
    ),
    (
        "a SIGSEGV handler, 16 pages",
        "SIGSEGV handler, 16 pages",
        0.044,
        29671.180,
    ),
];
/// Lock on fault of the whole range, there.
const LOCK_ON_FAULT: (f64, f64) = (0.189, 17904.899);

/// Lazy free, 3.14-rc6, 2 GiB, 4 CPUs: records of ebizzy in a second with
/// MADV_DONTNEED and with MADV_FREE in jemalloc; P.T: P processes with T threads.
const LAZY: [(&str, f64, f64); 9] = [
    ("1.1", 7417.8, 13866.0),
    ("1.4", 16353.8, 30380.0),
    ("1.8", 15766.0, 27498.4),
    ("4.1", 4000.4, 7926.6),
    ("4.4", 3920.4, 7046.8),
    ("4.8", 3951.8, 7024.6),
    ("8.1", 1919.8, 3354.0),
    ("8.4", 1946.6, 2800.4),
    ("8.8", 1947.2, 2249.6),
];

/// Volatile ranges, 3.7: seconds for 100 rounds over ten chunks of 8 MiB in each
/// of so many threads, with MADV_DONTNEED and with volatile ranges.
const VOLATILE: [(&str, u32, f64, f64); 2] = [
    ("KVM, 8 cores: 8 threads", 8, 33.10, 6.04),
    ("x86-64, 12 cores: 12 threads", 12, 5.80, 2.87),
];

/// Parallel free, 4.10, 72 cores: seconds for free() of 320 GiB, before, ...
const FREE_BEFORE: f64 = 10.8;
/// ... by default ...
const FREE_DEFAULT: f64 = 5.8;
/// ... and by the number of workers.
const FREE_BY_WORKERS: [(&str, &str, f64); 6] = [
    ("1 worker", "in chunks, 1 thread", 8.9),
    ("2 workers", "in chunks, 2 threads", 5.65),
    ("4 workers", "in chunks, 4 threads", 4.84),
    ("8 workers", "in chunks, 8 threads", 4.77),
    ("16 workers", "in chunks, 16 threads", 4.85),
    ("32 workers", "in chunks, 32 threads", 6.21),
];

pub fn lock() -> Vec<Published> {
    let (on_fault_set_up, on_fault_reads) = LOCK_ON_FAULT;
    let of = |figure, what: String, older_way, older: f64, newer: f64| Published {
        what,
        older: older / 1e3,
        newer: newer / 1e3,
        unit: Unit::Seconds,
        here: Here {
            is_case: Box::new(|case| case.table.starts_with("All ways")),
            figure,
            older: older_way,
            newer: None,
            has_tenure: true,
        },
    };
    let (what, way, set_up, _) = LOCK[0];
    let first = of(
        "set up",
        format!("{what}: set up"),
        way,
        set_up,
        on_fault_set_up,
    );
    let totals = LOCK.map(|(what, way, set_up, reads)| {
        let on_fault = on_fault_set_up + on_fault_reads;
        let what = format!("{what}: set up and reads");
        of("total", what, way, set_up + reads, on_fault)
    });
    [first].into_iter().chain(totals).collect()
}

pub fn lazy() -> Vec<Published> {
    let of = |(name, older, newer): (&'static str, f64, f64)| Published {
        what: format!("{name}: MADV_FREE for MADV_DONTNEED"),
        older,
        newer,
        unit: Unit::PerSecond,
        here: Here {
            is_case: Box::new(move |case| case.name == name),
            figure: "records",
            older: "MADV_DONTNEED",
            newer: Some("MADV_FREE"),
            has_tenure: true,
        },
    };
    LAZY.map(of).into()
}

pub fn volatile() -> Vec<Published> {
    let of = |(what, threads, older, newer): (&str, u32, f64, f64)| Published {
        what: format!("{what}, volatile for MADV_DONTNEED"),
        older,
        newer,
        unit: Unit::Seconds,
        here: Here {
            // The last of them: as many threads as there were there, or else fewer.
            is_case: Box::new(move |case| {
                let here = case
                    .name
                    .split(' ')
                    .next()
                    .and_then(|word| word.parse().ok());
                case.table.starts_with("Each thread")
                    && here.is_some_and(|here: u32| here <= threads)
            }),
            figure: "time",
            older: "MADV_DONTNEED",
            newer: None,
            has_tenure: true,
        },
    };
    VOLATILE.map(of).into()
}

pub fn free() -> Vec<Published> {
    let of = |what: String, newer, figure, newer_way| Published {
        what,
        older: FREE_BEFORE,
        newer,
        unit: Unit::Seconds,
        here: Here {
            // The largest in base pages.
            is_case: Box::new(|case| {
                case.name.starts_with("unmap ")
                    && !case.name.contains(',')
                    && !case.name.contains("blocks")
            }),
            figure,
            older: "munmap",
            newer: newer_way,
            has_tenure: newer_way.is_none(),
        },
    };
    let waits = of(
        "free() of 320 GiB, by default: the caller waits".to_owned(),
        FREE_DEFAULT,
        "caller waits",
        None,
    );
    let freed = of(
        "the same: until all is freed".to_owned(),
        FREE_DEFAULT,
        "all is freed after",
        None,
    );
    let by_workers = FREE_BY_WORKERS.map(|(what, way, seconds)| {
        let what = format!("free() of 320 GiB, {what}");
        of(what, seconds, "all is freed after", Some(way))
    });
    [waits, freed].into_iter().chain(by_workers).collect()
}
