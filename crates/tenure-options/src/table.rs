//! The table of options.

/// The name of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionName {
    /// `--heap`
    Heap,
    /// `--heap-threshold`
    HeapThreshold,
    /// `--heap-dirty-decay`
    HeapDirtyDecay,
    /// `--heap-muzzy-decay`
    HeapMuzzyDecay,
    /// `--munmap`
    Munmap,
    /// `--discard`
    Discard,
    /// `--lock`
    Lock,
    /// `--populate`
    Populate,
    /// `--pool`
    Pool,
    /// `--pool-released`
    PoolReleased,
    /// `--exit`
    Exit,
    /// `--sqlite-cache`
    SqliteCache,
    /// `--stats`
    Stats,
    /// `--verbose`
    Verbose,
}

/// The kind of value that an option has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On: the flag alone, or 1; off: 0.
    Switch,
    /// This word only.
    Word(&'static str),
    /// A size with a minimum; see [`parse_size`](crate::parse_size).
    Size {
        /// The minimum, in bytes.
        min_bytes: usize,
    },
    /// A duration; see [`parse_duration`](crate::parse_duration).
    Duration,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionRow {
    /// The option.
    pub name: OptionName,
    /// The flag of `tenure run`, without its dashes.
    pub flag: &'static str,
    /// The environment variable, which children inherit.
    pub variable: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The unit of its value, if it has one.
    pub unit: Option<&'static str>,
    /// The value when it is not set.
    pub default: &'static str,
    /// Its effect, in one line.
    pub help: &'static str,
    /// When to set it, and its cost.
    pub when: &'static str,
}

/// All options, in the order of the documentation.
pub static TABLE: [OptionRow; 14] = [
    OptionRow {
        name: OptionName::Heap,
        flag: "heap",
        variable: "TENURE_HEAP",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Serve malloc and its relatives from tenure's heap",
        when: "For programs whose memory grows and shrinks, or that grow large blocks with \
               realloc. Free pages are kept for reuse for some seconds, then lazily freed, \
               then returned to the kernel; under memory pressure at once. Once blocks have \
               been freed, the program has a second thread, tenure-decay. Off in programs \
               that export a malloc, calloc, realloc or free of their own; one that is linked \
               in under another name, or is hidden, is not seen, and its blocks are not the \
               heap's. Off where the program, or a library that it starts with, uses functions \
               of one allocator (dallocx, tc_free, mi_free, __libc_free) that is there; such uses \
               by dlopen and dlsym are not seen. Not for programs with an allocator whose \
               operator new ends in a jump to malloc and whose operator delete calls no free.",
    },
    OptionRow {
        name: OptionName::HeapThreshold,
        flag: "heap-threshold",
        variable: "TENURE_HEAP_THRESHOLD",
        kind: Kind::Size { min_bytes: 0 },
        unit: Some("bytes"),
        default: "0",
        help: "Serve requests of SIZE and more from tenure's heap; turns the heap on",
        when: "Raise it to leave small blocks to the next allocator in line: the C library's, \
               or one that LD_PRELOAD names. Two allocators cannot use each other's free \
               memory, so the peak rises.",
    },
    OptionRow {
        name: OptionName::HeapDirtyDecay,
        flag: "heap-dirty-decay",
        variable: "TENURE_HEAP_DIRTY_DECAY",
        kind: Kind::Duration,
        unit: Some("ms, s, min or h"),
        default: "4s",
        help: "Keep free pages so long before the kernel may reclaim them; turns the heap on",
        when: "Longer for programs that work in bursts with longer pauses, which otherwise pay \
               with page faults; shorter where others need the memory sooner, or where RSS is \
               watched. Memory pressure shortens it to an eighth. 0 returns free pages to the \
               kernel every 10 ms if the muzzy decay is 0 as well.",
    },
    OptionRow {
        name: OptionName::HeapMuzzyDecay,
        flag: "heap-muzzy-decay",
        variable: "TENURE_HEAP_MUZZY_DECAY",
        kind: Kind::Duration,
        unit: Some("ms, s, min or h"),
        default: "1s",
        help: "Return lazily freed pages to the kernel after so long; turns the heap on",
        when: "0 for monitors and limits that count RSS, or a container's rss, which include \
               what is lazily freed: memory goes back at once after the dirty decay. Longer \
               where they do not matter: the kernel reclaims lazily freed memory when it needs \
               some, and what it leaves is used again without a page fault.",
    },
    OptionRow {
        name: OptionName::Munmap,
        flag: "munmap",
        variable: "TENURE_MUNMAP",
        kind: Kind::Word("background"),
        unit: None,
        default: "off: the kernel unmaps while the caller waits",
        help: "Unmap large anonymous memory at once for the caller; free its pages behind it",
        when: "For programs in which munmap of 4 MiB and more, or mremap that shrinks by as \
               much, holds up the caller or other threads. The memory stays in use until it \
               is freed. Not for programs that handle userfaultfd events.",
    },
    OptionRow {
        name: OptionName::Discard,
        flag: "discard",
        variable: "TENURE_DISCARD",
        kind: Kind::Word("background"),
        unit: None,
        default: "off: the kernel frees while the caller waits",
        help: "Have madvise(MADV_DONTNEED) return at once; free the pages behind it",
        when: "For programs that discard 4 MiB and more in one call. The memory stays in use \
               until it is freed. Not for programs that handle userfaultfd events, or that \
               have guard regions (MADV_GUARD_INSTALL) in what they discard: those go.",
    },
    OptionRow {
        name: OptionName::Lock,
        flag: "lock",
        variable: "TENURE_LOCK",
        kind: Kind::Word("onfault"),
        unit: None,
        default: "off",
        help: "Lock all memory, each page on its first use",
        when: "For programs whose memory must never be swapped out or read in twice. All \
               mappings count against RLIMIT_MEMLOCK, used or not; past the limit mmap \
               fails, also in a program that started as root and has dropped its privileges. \
               If the limit forbids it at the start, the program runs without. Before Linux \
               5.18 madvise(MADV_DONTNEED) fails with EINVAL, on which node and chromium end. \
               Forked children have no locks; the programs that they run lock their own \
               memory.",
    },
    OptionRow {
        name: OptionName::Populate,
        flag: "populate",
        variable: "TENURE_POPULATE",
        kind: Kind::Size { min_bytes: 1 },
        unit: Some("bytes"),
        default: "off",
        help: "Fault private anonymous mappings of SIZE and more in when they are made",
        when: "For programs that map large memory at their start and use all of it: several \
               threads fault it in. Where headroom is too low, or the program only reserves \
               addresses (MAP_NORESERVE, or not writable), the mapping stays as it is. \
               Mappings that malloc makes for itself are not populated.",
    },
    OptionRow {
        name: OptionName::Pool,
        flag: "pool",
        variable: "TENURE_POOL",
        kind: Kind::Size { min_bytes: 1 },
        unit: Some("bytes"),
        default: "off",
        help: "Keep SIZE of zeroed memory ready for --populate",
        when: "For programs that map large memory while they serve requests, together with \
               --populate: it takes zeroed pages from there, which a thread has faulted in \
               ahead of need, from the first such mapping of each process on. What malloc maps \
               takes none. The memory counts as used by the program; blocks idle for \
               seconds, or all where memory is short, are the kernel's to take. Needs Linux \
               5.14, and for mappings below 32 MiB Linux 6.8 and userfaultfd. Off together \
               with --lock.",
    },
    OptionRow {
        name: OptionName::PoolReleased,
        flag: "pool-released",
        variable: "TENURE_POOL_RELEASED",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Let what --munmap and --discard free become memory of --pool",
        when: "For programs that replace large mappings by others, together with --pool, \
               --populate, and --munmap or --discard: workers zero what was unmapped for the \
               next mapping, which takes less CPU time than the kernel needs to free and \
               populate it. Not for programs that leave pages of memory which they unmap in \
               a pipe (vmsplice) or a socket (MSG_ZEROCOPY): the reader would find zeros, or \
               the contents of the memory that gets the page next. Needs Linux 6.8 and \
               userfaultfd.",
    },
    OptionRow {
        name: OptionName::Exit,
        flag: "exit",
        variable: "TENURE_EXIT",
        kind: Kind::Word("background"),
        unit: None,
        default: "off: wait returns after the memory is freed",
        help: "Let the process's end be seen before its memory is freed",
        when: "For programs with gigabytes whose parent waits for their end or restart. A second \
               process, tenure-teardown, shares the memory and frees it; memory is still in \
               use when wait returns. Forked processes have none: a program that goes to the \
               background by itself must be told to stay.",
    },
    OptionRow {
        name: OptionName::SqliteCache,
        flag: "sqlite-cache",
        variable: "TENURE_SQLITE_CACHE",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Have SQLite keep pages for as long as there is memory, whatever cache_size is",
        when: "For programs with a dynamic libsqlite3 (python3, php, the shell) whose databases \
               are larger than their caches. The kernel reclaims pages that SQLite does not use \
               when it needs memory. A gain only where pages are expensive to read: encrypted, \
               on slow storage, or not in the kernel's page cache. It takes the place of a page \
               cache that the program sets itself (SQLITE_CONFIG_PCACHE2). Programs that have \
               SQLite built in go on as before; docs/SQLITE.md tells how they use it.",
    },
    OptionRow {
        name: OptionName::Stats,
        flag: "stats",
        variable: "TENURE_STATS",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Print a summary to standard error when a program ends",
        when: "To see what the other options did, in each program where they did something. \
               A program that is killed, or becomes another by exec, prints none, nor does \
               a process that is forked and runs no other program.",
    },
    OptionRow {
        name: OptionName::Verbose,
        flag: "verbose",
        variable: "TENURE_VERBOSE",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Print one line to standard error when a program begins: the options in effect",
        when: "To see that the library is loaded, which allocator is next in line, and which \
               options are unavailable, in each program. Without it only the program that \
               tenure run starts says which options are left out, not those that it starts.",
    },
];

impl OptionRow {
    /// Returns the row of an option.
    pub fn of(name: OptionName) -> &'static Self {
        &TABLE[name as usize]
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::format;

    #[test]
    fn row_of_name_is_at_its_index() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.name as usize, index);
            assert_eq!(OptionRow::of(row.name), row);
        }
    }

    #[test]
    fn variable_name_matches_flag() {
        for row in &TABLE {
            let name = row.flag.to_uppercase().replace('-', "_");
            assert_eq!(row.variable, format!("TENURE_{name}"));
        }
    }

    #[test]
    fn sizes_and_durations_have_a_unit() {
        for row in &TABLE {
            let has_unit = matches!(row.kind, Kind::Size { .. } | Kind::Duration);
            assert_eq!(row.unit.is_some(), has_unit, "{}", row.flag);
        }
    }

    #[test]
    fn help_text_is_one_line() {
        for row in &TABLE {
            assert!(row.help.len() <= 90, "{}", row.help);
            assert!(!row.help.ends_with('.') && row.when.ends_with('.'));
        }
    }
}
