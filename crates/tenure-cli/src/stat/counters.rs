//! The counters that tenure keeps in a process.

use comfy_table::{Cell, Table};
use serde::{Serialize, Serializer};
use tenure::{Error, HeapGroup, Stats};

use tenure_bench::{
    table::{number, table_with},
    text::{bytes_text, count_text},
};

const HEADER_WIDTH: usize = 18;

/// A process's counters. In JSON they are a list, including those at zero; null for a
/// process that has not used tenure.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Counters {
    #[serde(serialize_with = "as_figures")]
    Read(Box<Stats>),
    /// The process has not used tenure.
    None,
    Unreadable {
        error: String,
    },
}

fn as_figures<S: Serializer>(stats: &Stats, serializer: S) -> Result<S::Ok, S::Error> {
    all_figures(stats).serialize(serializer)
}

/// One counter, or two that belong together.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl Counters {
    pub fn of_process(pid: u32) -> Self {
        match Stats::of_process(pid) {
            Ok(Some(stats)) => Self::Read(Box::new(stats)),
            // The process has ended meanwhile.
            Ok(None) | Err(Error::NoProcess { .. }) => Self::None,
            Err(error) => Self::Unreadable {
                error: error.to_string(),
            },
        }
    }

    /// Whether it is unknown what the process has done.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Unreadable { .. })
    }

    pub fn stats(&self) -> Option<&Stats> {
        match self {
            Self::Read(stats) => Some(stats),
            Self::None | Self::Unreadable { .. } => None,
        }
    }

    fn nonzero(&self) -> Vec<Figure> {
        let mut all = self.stats().map(figures).unwrap_or_default();
        all.retain(Figure::is_nonzero);
        all
    }
}

impl Figure {
    fn is_nonzero(&self) -> bool {
        self.calls.unwrap_or(0) > 0 || self.bytes.unwrap_or(0) > 0
    }
}

/// The figures but for those of [`heap_rows`].
fn figures(stats: &Stats) -> Vec<Figure> {
    let verb = |name, count: tenure::Count| Figure {
        name,
        calls: Some(count.calls),
        bytes: Some(count.bytes),
    };
    let calls = |name, calls| Figure {
        name,
        calls: Some(calls),
        bytes: None,
    };
    let bytes = |name, bytes| Figure {
        name,
        calls: None,
        bytes: Some(bytes),
    };
    vec![
        verb("populate", stats.populate),
        verb("lock", stats.lock),
        verb("unlock", stats.unlock),
        calls("lock_all", stats.lock_all_calls),
        calls("unlock_all", stats.unlock_all_calls),
        verb("lazy_free", stats.lazy_free),
        verb("freed eagerly", stats.eager_free),
        verb("freed under pressure", stats.freed_under_pressure),
        verb("mark_volatile", stats.mark_volatile),
        verb("mark_nonvolatile", stats.mark_nonvolatile),
        bytes("purged by the kernel", stats.purged_by_kernel_bytes),
        bytes("purged on request", stats.purged_on_request_bytes),
        bytes("purged under pressure", stats.purged_under_pressure_bytes),
        bytes("offered now", stats.offered_bytes),
        bytes("offers failed", stats.offer_failed_bytes),
        bytes("unprotected", stats.unprotected_bytes),
        bytes("volatile now", stats.volatile_bytes),
        bytes("of it unofferable", stats.unofferable_bytes),
        verb("munmap", stats.munmap),
        verb("discard", stats.discard),
        verb("punch", stats.punch),
        verb("deferred frees", stats.deferred_free),
        bytes("freed by callers", stats.freed_by_caller_bytes),
        calls("workers started", stats.workers_started),
        bytes("pending now", stats.pending_release_bytes),
        calls("cache hits", stats.cache_hits),
        calls("cache misses", stats.cache_misses),
        verb("evicted by caches", stats.cache_evicted),
        verb("purged in caches", stats.cache_purged),
        bytes("in caches now", stats.cache_bytes),
        bytes("in the pool now", stats.pool_bytes),
        bytes("of it lazily free", stats.pool_lazily_free_bytes),
        bytes("kept by the pool", stats.pool_recycled_bytes),
        bytes("prefilled", stats.pool_prefilled_bytes),
        verb("given by the pool", stats.pool_given),
        bytes("returned by the pool", stats.pool_returned_bytes),
        calls("SQLite pages now", stats.sqlite_pages),
        verb("SQLite pages purged", stats.sqlite_purged),
        calls("SQLite offered hits", stats.sqlite_offered_hits),
        verb("shared buffers", stats.shared_allocated),
        verb("shared purged", stats.shared_purged),
        bytes("heap active now", stats.heap_active_bytes),
        bytes("heap cached by threads", stats.heap_cached_bytes),
        bytes("heap dirty at most", stats.heap_max_dirty_bytes),
        bytes("heap pending now", stats.heap_pending_bytes),
        bytes("returned by the heap", stats.heap_returned_bytes),
        verb("of it under pressure", stats.heap_returned_under_pressure),
    ]
}

/// The figures of a group of the heap, and its name.
struct HeapRow {
    name: &'static str,
    figures: [Figure; 4],
}

/// The names of the groups, and those of their figures.
#[rustfmt::skip]
const HEAP_ROWS: [(&str, [&str; 4]); 3] = [
    ("small", ["heap small in use", "heap small dirty", "heap small muzzy", "heap small retained"]),
    ("medium", ["heap medium in use", "heap medium dirty", "heap medium muzzy", "heap medium retained"]),
    ("large", ["heap large in use", "heap large dirty", "heap large muzzy", "heap large retained"]),
];

fn heap_rows(stats: &Stats) -> [HeapRow; 3] {
    let groups = [stats.heap_small, stats.heap_medium, stats.heap_large].map(|group| {
        let HeapGroup {
            in_use_bytes,
            dirty_bytes,
            muzzy_bytes,
            retained_bytes,
            ..
        } = group;
        [in_use_bytes, dirty_bytes, muzzy_bytes, retained_bytes]
    });
    std::array::from_fn(|row| {
        let (name, names) = HEAP_ROWS[row];
        let figure = |column: usize| Figure {
            name: names[column],
            calls: None,
            bytes: Some(groups[row][column]),
        };
        HeapRow {
            name,
            figures: std::array::from_fn(figure),
        }
    })
}

fn all_figures(stats: &Stats) -> Vec<Figure> {
    let mut all = figures(stats);
    all.extend(heap_rows(stats).into_iter().flat_map(|row| row.figures));
    all
}

/// Returns a table of the heaps' memory by sizes of blocks, or `None` if there are none.
pub fn heap_table<'a>(processes: impl Iterator<Item = (u32, &'a Counters)>) -> Option<Table> {
    let header = ["PID", "heap", "in use", "dirty", "muzzy", "retained"];
    let mut table = table_with(header, HEADER_WIDTH);
    let mut is_empty = true;
    for (pid, counters) in processes {
        let rows = counters.stats().map(heap_rows).into_iter().flatten();
        let rows: Vec<_> = rows
            .filter(|row| row.figures.iter().any(Figure::is_nonzero))
            .collect();
        for (index, row) in rows.into_iter().enumerate() {
            let pid = if index == 0 {
                pid.to_string()
            } else {
                String::new()
            };
            let mut cells = vec![number(pid), Cell::new(row.name)];
            let bytes = row.figures.map(|figure| figure.bytes.unwrap_or(0));
            cells.extend(bytes.map(|bytes| number(bytes_text(bytes as f64))));
            table.add_row(cells);
            is_empty = false;
        }
    }
    (!is_empty).then_some(table)
}

/// Returns a table of the counters that are not zero, or `None` if all are.
pub fn table<'a>(processes: impl Iterator<Item = (u32, &'a Counters)>) -> Option<Table> {
    let mut table = table_with(["PID", "by tenure", "calls", "bytes"], HEADER_WIDTH);
    let mut is_empty = true;
    for (pid, counters) in processes {
        for (index, figure) in counters.nonzero().into_iter().enumerate() {
            let pid = if index == 0 {
                pid.to_string()
            } else {
                String::new()
            };
            let calls = figure.calls.map(|calls| count_text(calls as f64));
            let bytes = figure.bytes.map(|bytes| bytes_text(bytes as f64));
            table.add_row([
                number(pid),
                Cell::new(figure.name),
                number(calls.unwrap_or_default()),
                number(bytes.unwrap_or_default()),
            ]);
            is_empty = false;
        }
    }
    (!is_empty).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_cover_every_counter() {
        // A count is two figures; each of the others is one.
        let all = all_figures(&Stats::default());
        let figures = |figure: &Figure| {
            usize::from(figure.calls.is_some()) + usize::from(figure.bytes.is_some())
        };
        let named: usize = all.iter().map(figures).sum();
        assert_eq!(named * size_of::<u64>(), size_of::<Stats>());
    }

    #[test]
    fn heap_table_has_a_row_for_each_group_in_use() {
        let mut stats = Stats::default();
        assert!(heap_table([(7, &Counters::Read(Box::new(stats)))].into_iter()).is_none());
        stats.heap_small.in_use_bytes = 5 << 20;
        stats.heap_large.retained_bytes = 3 << 30;
        let counters = Counters::Read(Box::new(stats));
        let text = heap_table([(7, &counters), (8, &Counters::None)].into_iter());
        let text = text.unwrap().trim_fmt();
        assert_eq!(text.lines().count(), 6, "{text}");
        for part in ["small", "5 MiB", "large", "3 GiB"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("medium"), "{text}");
    }

    #[test]
    fn table_shows_counters_that_are_not_zero() {
        let mut stats = Stats::default();
        assert!(table([(7, &Counters::Read(Box::new(stats)))].into_iter()).is_none());
        stats.populate.calls = 1200;
        stats.populate.bytes = 3 << 30;
        stats.volatile_bytes = 1 << 20;
        let counters = Counters::Read(Box::new(stats));
        let text = table([(7, &counters), (8, &Counters::None)].into_iter());
        let text = text.unwrap().trim_fmt();
        assert_eq!(text.lines().count(), 6, "{text}");
        for part in ["1,200", "3 GiB", "volatile now", "1 MiB"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
