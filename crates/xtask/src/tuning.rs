//! docs/TUNING.md: every knob, from one table. What `tenure run` can be told comes from
//! the table that its options are made from, what the heap can from its defaults.

use std::fmt::Write as _;

use tenure_heap::HeapOptions;
use tenure_options::{Kind, OptionRow, TABLE};

/// Something that can be set: its name, default, unit, range, and when to turn it.
struct Knob([String; 5]);

impl Knob {
    fn new(name: &str, default: &str, unit: &str, range: &str, when: &str) -> Self {
        Self([name, default, unit, range, when].map(str::to_owned))
    }
}

const TITLE: &str = "\
<!-- Made by `make generate` from crates/xtask/src/tuning.rs and crates/tenure-options. -->

# Tuning

Everything that can be set, and when to. All has a default that is meant to stay: a knob
is turned after a measurement, not before one. What tenure measures and decides by itself
(what is moved, how many workers help, how much one call does) has no knob.
";

const COLUMNS: &str = "\
| knob | default | unit | range | when to turn it |
| --- | --- | --- | --- | --- |
";

/// Makes the document.
pub fn document() -> String {
    let parts = [
        (
            "Under unmodified programs",
            "Flags of `tenure run`, and the environment variables that the program and its \
             children find.",
            TABLE.iter().map(option).collect(),
        ),
        (
            "The library, from Rust",
            "Of one call, unless it says: of the process.",
            library(),
        ),
        (
            "The library, from C",
            "What is not listed is as in Rust, and has its default.",
            c_library(),
        ),
        (
            "The heap, from Rust",
            "Fields of `tenure_heap::HeapOptions`, for `tenure_heap::start` before the first \
             block. Of the process.",
            heap(),
        ),
    ];
    let mut text = TITLE.to_owned();
    for (title, about, knobs) in parts {
        let _ = write!(text, "\n## {title}\n\n{about}\n\n{COLUMNS}");
        for Knob(cells) in knobs {
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    text
}

fn option(row: &OptionRow) -> Knob {
    let range = match row.kind {
        Kind::Switch => "on or off (1 or 0)".to_owned(),
        Kind::Word(word) => format!("`{word}`"),
        Kind::Size { least_bytes } => {
            format!("{} and more, also as K, M, G", size_text(least_bytes))
        }
    };
    let name = format!("`--{}`, `{}`", row.flag, row.variable);
    Knob::new(
        &name,
        row.default,
        row.unit.unwrap_or("–"),
        &range,
        row.when,
    )
}

fn size_text(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS
        .iter()
        .find(|&&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit))
    {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => bytes.to_string(),
    }
}

fn library() -> Vec<Knob> {
    vec![
        Knob::new(
            "`PopulateOptions::strategy`",
            "`Auto`",
            "–",
            "`Strategy`",
            "Where `tenure bench populate` shows on your kernel and your files that another \
             way is faster than what Auto takes.",
        ),
        Knob::new(
            "`PopulateOptions::threads`",
            "one for each CPU allowed, at most one for each 16 MiB begun",
            "threads",
            "1 and more",
            "Lower it where other threads of the machine must not be slowed down.",
        ),
        Knob::new(
            "`PopulateOptions::chunk_bytes`",
            "what takes about 2 ms",
            "bytes",
            "a page and more",
            "Lower it where other threads' `mmap` must wait for less; each chunk is a call.",
        ),
        Knob::new(
            "`PopulateOptions::force`",
            "off",
            "–",
            "–",
            "Where you know that memory will be there although it does not seem so. Past a \
             cgroup's limit the kernel kills the process.",
        ),
        Knob::new(
            "`MappingBuilder::huge_pages`",
            "as the system has it",
            "–",
            "`HugePages`",
            "Wanted for large arrays that are used whole; unwanted where little of much is \
             touched.",
        ),
        Knob::new(
            "`FreePolicy`",
            "`Adaptive`",
            "–",
            "`Eager`, `Lazy`, `Adaptive`",
            "Eager where RSS must fall at once; lazy where memory is never short.",
        ),
        Knob::new(
            "`set_hand_over_delay`, of the process",
            "100 ms",
            "`Duration`",
            "0 and more",
            "Longer for buffers that come back after more than 100 ms as a rule: what comes \
             back earlier costs no system call. Shorter where others need the memory sooner; \
             0 offers it inside the call that marks.",
        ),
        Knob::new(
            "`Priority`",
            "`Normal`",
            "–",
            "`Lowest`, `Low`, `Normal`, `High`",
            "By what it costs to make the contents again: under pressure the lowest go first.",
        ),
        Knob::new(
            "`ReleaseLimits::max_active`, of the process",
            "4",
            "threads",
            "1 to the number of CPUs",
            "Lower it where freeing must leave CPUs alone; more never work than free faster \
             together, unless somebody waits.",
        ),
        Knob::new(
            "`ReleaseLimits::max_pending_bytes`, of the process",
            "a quarter of the machine's memory or of the cgroup's limit",
            "bytes",
            "1 and more",
            "Lower it where memory that is released must not stay charged for long: beyond it \
             the caller frees by itself.",
        ),
        Knob::new(
            "`teardown::enable`, of the process",
            "off",
            "–",
            "on or off",
            "For processes with gigabytes whose end somebody waits for. A second process \
             shares the memory until then.",
        ),
        Knob::new(
            "`LockedFile::with_budget`",
            "no budget: what was used stays",
            "bytes",
            "0 and more",
            "Where a file is larger than the memory that it may have.",
        ),
    ]
}

fn c_library() -> Vec<Knob> {
    vec![
        Knob::new(
            "`tenure_populate_options.threads`",
            "0: as in Rust",
            "threads",
            "0 and more",
            "As in Rust.",
        ),
        Knob::new(
            "`tenure_populate_options.chunk_bytes`",
            "0: as in Rust",
            "bytes",
            "0 and more",
            "As in Rust.",
        ),
        Knob::new(
            "`TENURE_POPULATE_FORCE`",
            "off",
            "–",
            "a flag",
            "As `PopulateOptions::force`.",
        ),
        Knob::new(
            "`priority` of `tenure_mvolatile_with`",
            "2 in `tenure_mvolatile`",
            "–",
            "0 (first to go) to 3",
            "As `Priority`.",
        ),
    ]
}

fn heap() -> Vec<Knob> {
    // All fields, by name: a new one must be added here.
    let HeapOptions {
        threshold_bytes,
        warm_bytes,
        warm_for,
        lazy_for,
        huge_pages,
    } = HeapOptions::default();
    vec![
        Knob::new(
            "`threshold_bytes`",
            &size_text(threshold_bytes),
            "bytes",
            &format!(
                "{} and more",
                size_text(tenure_options::LEAST_HEAP_THRESHOLD_BYTES)
            ),
            "Lower it where many blocks are just smaller and come and go; raise it where the \
             inner allocator should have them.",
        ),
        Knob::new(
            "`warm_bytes`",
            &size_text(warm_bytes),
            "bytes",
            "0 and more; never more than an eighth of the room there is",
            "Lower it where others need the memory at once; it is what bursts of more than \
             that pay for with page faults.",
        ),
        Knob::new(
            "`warm_for`",
            &format!("{} ms", warm_for.as_millis()),
            "`Duration`",
            "0 and more; looked at five times as often, at most each 10 ms",
            "Longer for programs that work in bursts with longer pauses; shorter to be lean.",
        ),
        Knob::new(
            "`lazy_for`",
            &format!("{} s", lazy_for.as_secs()),
            "`Duration`",
            "0 and more",
            "Longer where nobody looks at RSS: the kernel takes lazily free memory when it \
             needs some. Shorter where RSS, which counts it, must fall soon.",
        ),
        Knob::new(
            "`huge_pages`",
            if huge_pages { "on" } else { "off" },
            "–",
            "on or off",
            "Off where blocks of 2 MiB and more are used sparsely.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_of_run_is_there() {
        let document = document();
        for row in &TABLE {
            assert!(document.contains(&format!("`{}`", row.variable)));
        }
    }

    #[test]
    fn rows_have_five_cells() {
        let document = document();
        let rows: Vec<&str> = document
            .lines()
            .filter(|line| line.starts_with('|'))
            .collect();
        assert!(rows.len() > TABLE.len() + 20, "{}", rows.len());
        for row in rows {
            assert_eq!(row.replace("\\|", "").matches('|').count(), 6, "{row}");
        }
    }

    #[test]
    fn sizes_are_in_the_largest_unit_that_divides_them() {
        assert_eq!(size_text(1), "1");
        assert_eq!(size_text(64 << 10), "64 KiB");
        assert_eq!(size_text(4 << 30), "4 GiB");
    }

    #[test]
    fn the_library_has_the_defaults_that_are_told() {
        let limits = format!("{:?}", tenure::ReleaseLimits::default());
        assert!(limits.contains("max_active: 4"), "{limits}");
        assert_eq!(tenure::FreePolicy::default(), tenure::FreePolicy::Adaptive);
        assert_eq!(tenure::Priority::default().as_u8(), 2);
    }
}
