//! The table.

/// An option, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionName {
    /// `--heap`
    Heap,
    /// `--heap-threshold`
    HeapThreshold,
    /// `--munmap`
    Munmap,
    /// `--discard`
    Discard,
    /// `--lock`
    Lock,
    /// `--populate`
    Populate,
    /// `--exit`
    Exit,
    /// `--stats`
    Stats,
    /// `--verbose`
    Verbose,
}

/// What an option is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On or off: the flag alone; in the environment 1 or 0.
    Switch,
    /// This word, and nothing else.
    Word(&'static str),
    /// A size, of at least so many bytes; see [`parse_size`](crate::parse_size).
    Size {
        /// The least that is allowed.
        least_bytes: usize,
    },
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionRow {
    /// Which one it is.
    pub name: OptionName,
    /// The flag of `tenure run`, without its dashes.
    pub flag: &'static str,
    /// The environment variable, which children inherit.
    pub variable: &'static str,
    /// What it may be set to.
    pub kind: Kind,
    /// The unit of its value, if it has one.
    pub unit: Option<&'static str>,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// When to turn it, and what it costs.
    pub when: &'static str,
}

/// All options, in the order of the documentation.
pub static TABLE: [OptionRow; 9] = [
    OptionRow {
        name: OptionName::Heap,
        flag: "heap",
        variable: "TENURE_HEAP",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Serve large requests of malloc and its kin from tenure's heap",
        when: "For programs that take and give back blocks of 256 KiB and more again and \
               again, or grow large ones with realloc. Freed blocks are kept for a moment, \
               then lent to the kernel, then given back; under memory pressure at once. \
               Smaller requests go to the next allocator in line: the C library's, or one \
               that LD_PRELOAD names. Off where address space is limited (RLIMIT_AS, \
               vm.overcommit_memory=2), and together with --lock unless RLIMIT_MEMLOCK is \
               unlimited. Once blocks have been freed there is a thread, tenure-heap: the \
               program is one with threads.",
    },
    OptionRow {
        name: OptionName::HeapThreshold,
        flag: "heap-threshold",
        variable: "TENURE_HEAP_THRESHOLD",
        kind: Kind::Size {
            least_bytes: crate::LEAST_HEAP_THRESHOLD_BYTES,
        },
        unit: Some("bytes"),
        default: "256K",
        help: "Serve requests of SIZE and more from tenure's heap; turns the heap on",
        when: "Lower it, to 64K at least, for programs whose blocks are just below it; raise \
               it where only the largest are to go to tenure's heap.",
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
        when: "For programs that give back the contents of 4 MiB and more in one call. The \
               memory stays in use until it is freed. Not for programs that handle \
               userfaultfd events.",
    },
    OptionRow {
        name: OptionName::Lock,
        flag: "lock",
        variable: "TENURE_LOCK",
        kind: Kind::Word("onfault"),
        unit: None,
        default: "off",
        help: "Lock all memory, each page when it is first used",
        when: "For programs whose memory must never be swapped out or read in twice. All that \
               is mapped counts against RLIMIT_MEMLOCK, used or not; past the limit mmap \
               fails, also when a program that began as root gives its rights up. Where the \
               limit forbids it at the start, the program runs without. Children that are \
               forked have no locks; programs that they run lock their own.",
    },
    OptionRow {
        name: OptionName::Populate,
        flag: "populate",
        variable: "TENURE_POPULATE",
        kind: Kind::Size { least_bytes: 1 },
        unit: Some("bytes"),
        default: "off",
        help: "Fault private anonymous mappings of SIZE and more in when they are made",
        when: "For programs that map large memory at their start and use all of it: several \
               threads fault it in. Where there is no room for it, or the program maps \
               memory only to reserve it (MAP_NORESERVE, or not writable), it stays as it \
               is. What malloc maps for itself is not populated.",
    },
    OptionRow {
        name: OptionName::Exit,
        flag: "exit",
        variable: "TENURE_EXIT",
        kind: Kind::Word("background"),
        unit: None,
        default: "off: whoever waits for the process waits for its memory to be freed",
        help: "Let the process's end be seen before its memory is freed",
        when: "For programs with gigabytes whose end or restart somebody waits for. A second \
               process, tenure-teardown, shares the memory and frees it; memory is still in \
               use when wait returns. Processes that are forked have none: a program that goes \
               to the background by itself must be told to stay.",
    },
    OptionRow {
        name: OptionName::Stats,
        flag: "stats",
        variable: "TENURE_STATS",
        kind: Kind::Switch,
        unit: None,
        default: "off",
        help: "Print a summary to standard error when a program ends",
        when: "To see what the other options did, in each program that had to do with them. \
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
        help: "Print one line to standard error when a program begins: what is on",
        when: "To see that the library is loaded, which allocator is next in line, and what \
               could not be turned on.",
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
    fn rows_are_found_by_name() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.name as usize, index);
            assert_eq!(OptionRow::of(row.name), row);
        }
    }

    #[test]
    fn a_flag_and_its_variable_have_one_name() {
        for row in &TABLE {
            let name = row.flag.to_uppercase().replace('-', "_");
            assert_eq!(row.variable, format!("TENURE_{name}"));
        }
    }

    #[test]
    fn what_is_a_size_has_a_unit() {
        for row in &TABLE {
            let is_size = matches!(row.kind, Kind::Size { .. });
            assert_eq!(row.unit.is_some(), is_size, "{}", row.flag);
        }
    }

    #[test]
    fn help_is_one_line() {
        for row in &TABLE {
            assert!(row.help.len() <= 90, "{}", row.help);
            assert!(!row.help.ends_with('.') && row.when.ends_with('.'));
        }
    }
}
