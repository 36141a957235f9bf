//! The operations that a thread can do, and the counters of the report.

use std::time::Duration;

use tenure::lazy_free::FreePolicy;
use tenure::lock::{LockFlags, LockScope};
use tenure::populate::Strategy;
use tenure::volatile::Priority;
use tenure::{Access, HugePages, LockMode};

/// The memory of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous memory of base pages.
    Plain,
    /// Private anonymous memory of huge pages.
    Huge,
    SharedAnonymous,
    Memfd,
    /// A file, mapped shared.
    File,
    /// A file, mapped copy-on-write.
    PrivateFile,
    /// A VolatileBuffer with a mapping of its own.
    Buffer,
    /// A VolatileBuffer in the arena that all threads use.
    InArena,
}

impl Kind {
    pub fn is_buffer(self) -> bool {
        matches!(self, Self::Buffer | Self::InArena)
    }

    pub fn is_private_anonymous(self) -> bool {
        matches!(self, Self::Plain | Self::Huge)
    }

    pub fn is_file(self) -> bool {
        !self.is_buffer() && !self.is_private_anonymous()
    }

    pub fn is_shared(self) -> bool {
        matches!(self, Self::SharedAnonymous | Self::Memfd | Self::File)
    }
}

/// The call that ends a mapping.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Munmap,
    Drop,
    MunmapSync,
    Recycle,
}

#[derive(Clone, Copy, Debug)]
pub enum CacheUse {
    Insert(Priority),
    Get,
    Hold,
    GetOrInsert,
    Remove,
}

#[derive(Clone, Copy, Debug)]
pub enum SecretUse {
    Extend,
    Truncate,
    Resize,
    Clear,
    Renew,
    RenewHidden,
}

#[derive(Clone, Copy, Debug)]
pub struct Populate {
    pub access: Access,
    pub strategy: Strategy,
    pub threads: usize,
    /// 0 leaves the choice to tenure.
    pub chunk_pages: usize,
    pub in_background: bool,
    /// The first progress report cancels the call.
    pub cancel: bool,
}

/// Defines an enum, a list of its variants' names, and a variant's place in that list.
macro_rules! named_enum {
    ($(#[$meta:meta])* $enum:ident, $names:ident {
        $($(#[$note:meta])* $variant:ident $(($($type:ty),+))? = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $enum {
            $($(#[$note])* $variant $(($($type),+))?,)+
        }

        pub const $names: &[&str] = &[$($name),+];

        impl $enum {
            pub fn index(&self) -> usize {
                enum Index { $($variant),+ }
                match self { $(Self::$variant { .. } => Index::$variant as usize,)+ }
            }
        }
    };
}

named_enum! {
    /// An operation, and the name by which the report counts it.
    Verb, VERBS {
        Write = "write",
        /// Whether to read ordinary memory as the program does.
        Check(bool) = "check",
        Populate(Populate) = "populate",
        Lock(LockMode) = "lock",
        Unlock(LockFlags) = "unlock",
        LockProcess(LockScope, LockMode) = "lock_all",
        /// The locks to clear, and whether new mappings are locked on fault before.
        UnlockProcess(LockFlags, bool) = "unlock_all",
        Free(FreePolicy) = "free",
        LazyFree = "lazy_free",
        Reuse = "reuse",
        Mark(Priority) = "mark_volatile",
        MarkAndOffer(Priority) = "mark_volatile_and_offer",
        Unmark = "mark_nonvolatile",
        ReadVolatile = "read_volatile",
        IsIntact = "is_intact",
        Purge = "purge",
        PurgeAll = "purge_all",
        Discard = "discard",
        Punch = "punch",
        PageOut = "page_out",
        MunmapPart = "munmap_part",
        /// How to end the mapping, and the pages of the next one.
        Renew(End, usize) = "munmap",
        Residency = "residency",
        OfferDelay(Duration) = "offer_delay",
        Drain = "drain",
        /// How many MiB the page pool holds at most, how many it is filled with, and whether
        /// released memory enters it.
        Pool(usize, usize, bool) = "pool",
        /// How many blocks of the pool a table takes.
        ReplaceTables(usize, HugePages) = "replace_tables",
        /// A key, and the length of a new value.
        Cache(CacheUse, usize, usize) = "cache",
        /// Whether to map a new file first.
        LockedFile(bool) = "locked_file",
        /// The new length, or that of the bytes to append.
        Secret(SecretUse, usize) = "secret",
        /// How many operations the child does, and whether fork handlers of the program use
        /// tenure.
        Fork(usize, bool) = "fork",
        /// Whether to open files until none can be opened, and for how long.
        NoDescriptors(bool, Duration) = "no_descriptors",
        CloseDescriptors = "close_descriptors",
        /// How much memory may still be mapped, and for how long.
        LimitData(usize, Duration) = "limit_data",
        /// To one CPU, or to those that the thread began with.
        Pin(Option<usize>) = "pin",
        /// How many threads at once, and the bytes that each admits.
        Admit(usize, usize) = "admit",
        ManyObjects = "many_objects",
        MostlyEmpty = "mostly_empty",
    }
}

named_enum! {
    /// A counter of the report, and its key there.
    Count, COUNTS {
        PagesChecked = "pages_checked",
        PagesCheckedByChildren = "pages_checked_by_children",
        Forks = "forks",
        HandlerCalls = "fork_handler_calls",
        DescriptorsClosed = "descriptors_closed",
        Signals = "signals",
        PagesPurged = "pages_purged",
        UnmarkedIntact = "unmarked_intact",
        NoDescriptor = "no_descriptor_errors",
        NoMemory = "no_data_errors",
        PageOuts = "page_outs",
        PurgeAllCalls = "purge_all_calls",
        BytesAdmitted = "admitted_bytes",
        PressureWaves = "pressure_waves",
        BytesRecycled = "recycled_bytes",
        BytesFromPool = "pool_given_bytes",
        Waits = "waits",
        PendingBytes = "pending_bytes",
        MappingsBefore = "mappings_before",
        MappingsAfter = "mappings_after",
        DescriptorsBefore = "descriptors_before",
        DescriptorsAfter = "descriptors_after",
    }
}

/// One operation, on `count` pages of a slot from page `first` on.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub number: u64,
    pub slot: usize,
    pub first: usize,
    pub count: usize,
    pub verb: Verb,
}

/// How many keys each thread has in the cache.
pub const CACHE_KEYS: usize = 48;

pub const MAX_SECRET_BYTES: usize = 20_000;

/// Returns the first page and the number of pages of the longer piece that is left when
/// `count` pages from `first` on are unmapped; all of it if nothing would be left.
pub fn kept(pages: usize, first: usize, count: usize) -> (usize, usize) {
    let behind = pages - first - count;
    match (first, behind) {
        (0, 0) => (0, pages),
        _ if first >= behind => (0, first),
        _ => (first + count, behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_after_unmapping_a_part_is_the_longer_piece() {
        assert_eq!(kept(10, 0, 10), (0, 10));
        assert_eq!(kept(10, 0, 4), (4, 6));
        assert_eq!(kept(10, 6, 4), (0, 6));
        assert_eq!(kept(10, 5, 1), (0, 5));
        assert_eq!(kept(10, 2, 1), (3, 7));
    }
}
