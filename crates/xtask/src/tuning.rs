//! docs/TUNING.md: every setting, in tables. The options of `tenure run` come from the
//! table that the command line is made from, and the heap's from its defaults.

use std::fmt::Write as _;

use anyhow::Result;
use tenure_heap::HeapOptions;
use tenure_options::{Kind, OptionRow, TABLE};

use crate::figures::{self, size_text};

/// A setting: its name, default, unit, range, and when to change it.
struct Setting([String; 5]);

impl Setting {
    fn new(name: &str, default: &str, unit: &str, range: &str, when: &str) -> Self {
        Self([name, default, unit, range, when].map(str::to_owned))
    }
}

const TITLE: &str = "\
<!-- Made by `make generate` from crates/xtask/src/tuning.rs and crates/tenure-options. -->

# Tuning

Every setting, and when to change it. The defaults are meant to stay: change a setting
after a measurement, not before one. Tenure measures and decides the rest by itself (what
is moved, how many workers help, how much one call does). The terms are in the glossary
of [ARCHITECTURE.md](../ARCHITECTURE.md#glossary).
";

const COLUMNS: &str = "\
| setting | default | unit | range | when to change it |
| --- | --- | --- | --- | --- |
";

const DECAY: &str = "
## How long the heap keeps free pages

A free page is dirty for `--heap-dirty-decay`, then muzzy for `--heap-muzzy-decay`, then the
kernel has it. RSS counts it until then. Under memory pressure both times are an eighth, and
under severe pressure all free pages go at once; dirty pages never take more than an eighth of
the headroom. So the times matter while memory is plentiful:

| the program | dirty decay | muzzy decay |
| --- | --- | --- |
| is judged by RSS, by a monitor or an autoscaler | `500ms` | `0` |
| shares a machine with others that need its memory within a second | `500ms` | `0` |
| works in bursts, with pauses of up to a minute | `1min` | `1s` |
| has the machine for itself, and must not pay page faults | `1h` | `0` |

New blocks use dirty pages first. `malloc_trim(0)` returns all free pages, for a program that
knows when it becomes idle. Freed blocks of up to 64 KiB that a thread has cached for itself
stay until it allocates or frees more, ends, or calls `malloc_trim`. Of larger ones, up to 1 MiB,
all threads together keep 40 MiB at most while they request such. The virtual size does not fall:
addresses are kept for reuse.

`--stats` prints what is in use, dirty, muzzy and retained at the end, also by the size of
blocks, and how often and how much pressure has had the heap return; `tenure stat PID` shows
that of a running program, the exporter's `tenure_process_heap_*` too, and `mallinfo2`, `malloc_info` and `malloc_stats` tell a program itself.
";

const PEAK: &str = "
## The peak

Measured as the largest RSS (`/usr/bin/time -v`, or VmHWM), the median of three runs each, which are
within 2 %:

| program | C library | `tenure run --heap` |
| --- | --- | --- |
| `sqlite3 :memory:`, 400,000 rows of 280 bytes and an index | 172 MiB | 205 MiB |
| `cc1plus -O2` of g++, a file that includes `<regex>` and `<map>` | 229 MiB | 234 MiB |
| a Dask worker with two threads, each of which makes 1.4 GiB of arrays of 80 B to 32 KB, and the same again with 128 B to 4 MB | 2,932 MiB | 3,174 MiB |

Dask's worker has 2,891 MiB six seconds after either with the C library, and 156 and 124 with the
heap; the second, whose memory the C library still has, takes 2.3 s in place of 0.4.

The heap rounds blocks up to jemalloc's sizes, of which there are four for each doubling up to
32 KiB: SQLite's page and its header, a little more than 4 KiB, take 5 KiB.
";

const MONITORS: &str = "
## What monitors count

A lazily freed page stays in RSS until the kernel reclaims it, but it moves to the inactive
file list. So a cgroup's working set, which kubelet computes as usage \u{2212} inactive_file (not
below 0), and by which it evicts pods, leaves lazily free memory out. RSS does not, neither
`RssAnon` and `smaps` of a process nor `anon` or `rss` of a cgroup (cAdvisor's
`container_memory_rss`).

`MemAvailable` lacks freed memory until tenure's threads have come to it, within 50 ms after
8 GiB were freed. (`free` took microseconds, and 1.2 s with the C library.) So a program that
decides by it right after a large `free` may find too little: one of numpy's tests, which wants
18 GB available, skips itself on a machine of 24 GB.

Measured in MiB, before and after a process freed 1 GiB lazily, with cgroup v1 (Linux 6.18) and
with cgroup v2 (Debian's Linux 6.12 in a virtual machine; 5.10, 6.1 and 7.2 differ by a MiB at
most):

| figure | from, with v1 | before | after | from, with v2 | before | after |
| --- | --- | --- | --- | --- | --- | --- |
| usage | `memory.usage_in_bytes` | 1,033 | 1,033 | `memory.current` | 1,030 | 1,030 |
| inactive file | `total_inactive_file` of `memory.stat` | 0 | 1,024 | `inactive_file` of `memory.stat` | 0 | 1,024 |
| working set | `tenure stat --cgroup` | 1,033 | 9 | `tenure stat --cgroup` | 1,030 | 6 |
| lazily free | `tenure stat --cgroup` | 0 | 1,024 | `tenure stat --cgroup` | 0 | 1,024 |
| cgroup's RSS | `total_rss` of `memory.stat` | 1,031 | 1,031 | `anon` of `memory.stat` | 1,027 | 1,027 |

```console
# cat free1g.py
import mmap
size = 1 << 30
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, mmap.PAGESIZE):
    memory[at] = 1
input(\"written: \")
memory.madvise(mmap.MADV_FREE)
input(\"freed lazily: \")
# group=/sys/fs/cgroup/memory/try     # with v1; with v2 the next line
# echo +memory > /sys/fs/cgroup/cgroup.subtree_control; group=/sys/fs/cgroup/try
# mkdir $group
# sh -c 'echo $$ > $0/cgroup.procs; exec python3 free1g.py' $group
# tenure stat --cgroup $group     # in another terminal, before and after
# grep -E '^((total_)?inactive_file|total_rss|anon) ' $group/memory.stat
```

A limit takes that memory first, without swap. With `echo 200M > $group/memory.max` after it,
usage was 198 or 199 with Linux 6.12 and 7.2, and 6 with 5.10 and 6.1, which reclaim more than they
need; the working set was 5.

Where a monitor counts RSS, `tenure stat`, `tenure stat --openmetrics` and `tenure exporter`
show it without what is lazily free. The last two print for Prometheus:

| metric | what it shows |
| --- | --- |
| `tenure_process_resident_without_lazily_free_bytes` | what a process really uses |
| `tenure_process_lazily_free_bytes`, `_volatile_bytes`, `_offered_bytes`, `_pending_release_bytes` | what of the rest the kernel may reclaim, or tenure is about to free |
| `tenure_process_purged_bytes_total` | volatile memory that was purged: `cause` is `kernel`, `pressure`, `request` or `unprotected` |
| `tenure_process_cache_lookups_total` | lookups in volatile caches: `result` is `hit` or `miss` |
| `tenure_process_heap_in_use_bytes`, `_heap_dirty_bytes`, `_heap_muzzy_bytes`, `_heap_retained_bytes` | the heap's memory: `size` is `small` (blocks of up to 28 KiB, 224 KiB on aarch64), `medium` (4 MiB) or `large` |
| `tenure_process_heap_returned_bytes_total`, `_heap_returned_under_pressure_bytes_total`, `_heap_pressure_purges_total` | what the heap has returned to the kernel, what of it under pressure, and how often pressure had it return memory early |
| `tenure_process_sqlite_pages`, `_sqlite_purged_pages_total`, `_sqlite_offered_hits_total` | SQLite's page cache: what it holds, what was purged, and what was found although it was offered |
| `tenure_cgroup_working_set_bytes`, `tenure_cgroup_usage_bytes` | as above |
| `tenure_pressure_level`, `tenure_process_pressure_level`, `tenure_cgroup_pressure_level` | 0 none, 1 some, 2 severe |
| `tenure_target_up` | 1, or 0 where a process or cgroup that was named is not there or cannot be read: `kind` is `process` or `cgroup`, `target` its name |
| `tenure_scrape_errors` | readings that failed this time: `source` is `process` (one that may not be read), `counters`, `preload` or `machine` |
| `tenure_process_readable` | 1, or 0 where a process has no samples of a source because they are unknown: `source` is `counters`, `preload` or `pressure` |

A figure that is unknown has no sample, and neither has one of tenure for a process that does
not use it; the last three tell which. Alert on `tenure_target_up == 0`, and
where `tenure_scrape_errors` rises: it is never 0 beside a process that may not be read. That a
textfile is no longer written is `node_textfile_mtime_seconds`.

[grafana-dashboard.json](grafana-dashboard.json) draws them.
";

/// Returns the document.
pub fn document() -> Result<String> {
    let parts = [
        (
            "Under unmodified programs",
            "Flags of `tenure run`, and the environment variables that it sets for the program \
             and its children. Each may be `off`, as if it were not set; `--config FILE` takes \
             them from a file.",
            TABLE.iter().map(option).collect(),
        ),
        (
            "The library, from Rust",
            "Each setting is for one call, unless the table says: of the process.",
            library(),
        ),
        (
            "The library, from C",
            "Settings that are not listed have Rust's defaults.",
            c_library(),
        ),
        (
            "The heap, from Rust",
            "Fields of `tenure_heap::HeapOptions`, for `tenure_heap::start` before the first \
             block. They hold for the process.",
            heap(),
        ),
    ];
    let mut text = TITLE.to_owned();
    for (title, about, settings) in parts {
        let _ = write!(text, "\n## {title}\n\n{about}\n\n{COLUMNS}");
        for Setting(cells) in settings {
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    Ok(figures::fill(&text)? + DECAY + PEAK + MONITORS)
}

fn option(row: &OptionRow) -> Setting {
    let range = match row.kind {
        Kind::Duration => "0 and more".to_owned(),
        Kind::Switch => "on or off (1 or 0)".to_owned(),
        Kind::Word(word) => format!("`{word}`"),
        Kind::Size { min_bytes } => {
            format!("{} and more, also as K, M, G", size_text(min_bytes))
        }
    };
    let name = format!("`--{}`, `{}`", row.flag, row.variable);
    Setting::new(
        &name,
        row.default,
        row.unit.unwrap_or("–"),
        &range,
        row.when,
    )
}

fn library() -> Vec<Setting> {
    vec![
        Setting::new(
            "`PopulateOptions::strategy`",
            "`Auto`",
            "–",
            "`Strategy`",
            "Set it where `tenure bench populate` shows that another way is faster than Auto on \
             your kernel and your files.",
        ),
        Setting::new(
            "`PopulateOptions::threads`",
            "one for each CPU allowed, at most one for each {POPULATE_BYTES_PER_THREAD} begun",
            "threads",
            "1 and more",
            "Lower it where other threads of the machine must not be slowed down.",
        ),
        Setting::new(
            "`PopulateOptions::chunk_bytes`",
            "as many as take about {POPULATE_CHUNK_DURATION}",
            "bytes",
            "a page and more",
            "Lower it where other threads' `mmap` must wait for less; each chunk is a call.",
        ),
        Setting::new(
            "`PopulateOptions::force`",
            "off",
            "–",
            "–",
            "Set it where you know that there will be memory although the headroom is too low. \
             Past a cgroup's limit the kernel kills the process.",
        ),
        Setting::new(
            "`MappingBuilder::huge_pages`",
            "as the system has it",
            "–",
            "`HugePages`",
            "Wanted for large arrays that are used whole; unwanted for sparse ones.",
        ),
        Setting::new(
            "`FreePolicy`",
            "`Adaptive`",
            "–",
            "`Eager`, `Lazy`, `Adaptive`",
            "Eager where RSS must fall at once; lazy where memory is always plentiful.",
        ),
        Setting::new(
            "`set_offer_delay`, of the process",
            "{VOLATILE_OFFER_DELAY}",
            "`Duration`",
            "0 and more",
            "Longer for buffers that are usually unmarked after more than \
             {VOLATILE_OFFER_DELAY}: unmarking within the delay costs no system call. Shorter \
             where others need the memory sooner; 0 offers it inside the call that marks.",
        ),
        Setting::new(
            "`Priority`",
            "`Normal`",
            "–",
            "`Lowest`, `Low`, `Normal`, `High`",
            "Choose it by the cost of making the contents again: pressure purges the lowest \
             first.",
        ),
        Setting::new(
            "`ReleaseLimits::max_active`, of the process",
            "4",
            "threads",
            "1 to the number of CPUs",
            "Lower it where freeing must leave CPUs alone. No more workers run than free faster \
             together, unless a caller waits.",
        ),
        Setting::new(
            "`ReleaseLimits::max_pending_bytes`, of the process",
            "half of the headroom",
            "bytes",
            "1 and more",
            "Lower it where released memory must not stay charged for long: beyond it the \
             caller frees as well.",
        ),
        Setting::new(
            "`pool::PoolOptions::max_bytes`, of the process",
            "0: no pool",
            "bytes",
            "2 MiB and more",
            "For programs that recycle large memory and populate as much again: workers zero \
             it and keep it. The memory stays in use until it is idle for 5 seconds, or \
             memory is short; other processes would have had it.",
        ),
        Setting::new(
            "`pool::PoolOptions::prefill_bytes`, of the process",
            "0",
            "bytes",
            "0 to `max_bytes`",
            "Set it where the first requests must not wait for the kernel either, and several \
             GiB of memory are left.",
        ),
        Setting::new(
            "`pool::PoolOptions::prefill_on_use`, of the process",
            "false",
            "bool",
            "true, false",
            "For options that many processes inherit, few of which populate large memory: the \
             others fill no pool.",
        ),
        Setting::new(
            "`pool::PoolOptions::recycle_released`, of the process",
            "false",
            "bool",
            "true, false",
            "For programs in which no page that they release is still in a pipe (`vmsplice`) or \
             in a socket (MSG_ZEROCOPY): what munmap, discard and dropped mappings release \
             becomes the next populated memory without a call of `recycle` for each.",
        ),
        Setting::new(
            "`teardown::enable`, of the process",
            "off",
            "–",
            "on or off",
            "For processes with gigabytes whose parent waits for their end. A second process \
             shares the memory until it is freed.",
        ),
        Setting::new(
            "`LockedFile::with_budget`",
            "no budget: used pages stay",
            "bytes",
            "0 and more",
            "Set it for a file that is larger than the memory that it may take.",
        ),
    ]
}

fn c_library() -> Vec<Setting> {
    vec![
        Setting::new(
            "`tenure_populate_options.threads`",
            "0: as in Rust",
            "threads",
            "0 and more",
            "As in Rust.",
        ),
        Setting::new(
            "`tenure_populate_options.chunk_bytes`",
            "0: as in Rust",
            "bytes",
            "0 and more",
            "As in Rust.",
        ),
        Setting::new(
            "`TENURE_POPULATE_FORCE`",
            "off",
            "–",
            "a flag",
            "As `PopulateOptions::force`.",
        ),
        Setting::new(
            "`tenure_pool_options.max_bytes`, `tenure_pool_options.prefill_bytes`",
            "0: no pool",
            "bytes",
            "0 and more",
            "As in Rust.",
        ),
        Setting::new(
            "`tenure_pool_options.prefill_on_use`, `tenure_pool_options.recycle_released`",
            "0",
            "–",
            "0; anything else",
            "As in Rust.",
        ),
        Setting::new(
            "`priority` of `tenure_mvolatile_with`",
            "{VOLATILE_PRIORITY_DEFAULT} in `tenure_mvolatile`",
            "–",
            "0 (first to go) to {VOLATILE_PRIORITY_MAX}",
            "As `Priority`.",
        ),
    ]
}

fn heap() -> Vec<Setting> {
    // All fields are named, so that a new one must be added here.
    let HeapOptions {
        threshold_bytes,
        max_dirty_bytes,
        dirty_decay,
        muzzy_decay,
        huge_pages,
    } = HeapOptions::default();
    vec![
        Setting::new(
            "`threshold_bytes`",
            &threshold_bytes.to_string(),
            "bytes",
            "0 and more",
            "Raise it to leave small blocks to the inner allocator. Two allocators cannot use \
             each other's free memory, so the peak rises.",
        ),
        Setting::new(
            "`max_dirty_bytes`",
            &size_text(max_dirty_bytes),
            "bytes",
            "0 and more; never more than an eighth of the headroom",
            "Lower it where others need the memory at once; bursts of more than that pay with \
             page faults.",
        ),
        Setting::new(
            "`dirty_decay`",
            &format!("{} s", dirty_decay.as_secs()),
            "`Duration`",
            "0 and more; checked twenty times per decay, every 10 to 100 ms",
            "Longer for programs that work in bursts with longer pauses; shorter where RSS \
             matters more than page faults.",
        ),
        Setting::new(
            "`muzzy_decay`",
            &format!("{} s", muzzy_decay.as_secs()),
            "`Duration`",
            "0 and more",
            "Longer where RSS does not matter: the kernel reclaims lazily freed memory when it \
             needs some. Shorter where RSS, which counts it, must fall soon.",
        ),
        Setting::new(
            "`huge_pages`",
            if huge_pages { "on" } else { "off" },
            "–",
            "on or off",
            "Off where blocks of 16 MiB and more are used sparsely.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_every_run_option() {
        let document = document().unwrap();
        for row in &TABLE {
            assert!(document.contains(&format!("`{}`", row.variable)));
        }
    }

    #[test]
    fn rows_of_each_table_have_as_many_cells() {
        let document = document().unwrap();
        let cells = |line: &str| match line.starts_with('|') {
            true => line.replace("\\|", "").matches('|').count(),
            false => 0,
        };
        let mut rows = 0;
        for (line, next) in document.lines().zip(document.lines().skip(1)) {
            let counts = [cells(line), cells(next)];
            assert!(counts.contains(&0) || counts[0] == counts[1], "{next}");
            rows += usize::from(counts[0] > 0);
        }
        assert!(rows > TABLE.len() + 20, "{rows}");
    }

    #[test]
    fn documented_library_defaults_are_the_defaults() {
        let limits = format!("{:?}", tenure::release::ReleaseLimits::default());
        assert!(limits.contains("max_active: 4"), "{limits}");
        assert_eq!(
            tenure::lazy_free::FreePolicy::default(),
            tenure::lazy_free::FreePolicy::Adaptive
        );
    }
}
