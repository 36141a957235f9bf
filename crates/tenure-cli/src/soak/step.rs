//! What a thread can do, one operation at a time.

use tenure::{Access, FreePolicy, LockAll, LockMode, LockModes, Priority, Strategy};

/// What kind of memory a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous memory of base pages.
    Plain,
    /// The same of huge pages.
    Huge,
    SharedAnonymous,
    Memfd,
    /// A file, mapped shared.
    File,
    /// A file, mapped copy-on-write.
    PrivateFile,
    /// A VolatileBuffer with a mapping of its own.
    Buffer,
    /// One in an arena that all threads use.
    InArena,
}

impl Kind {
    pub fn is_buffer(self) -> bool {
        matches!(self, Self::Buffer | Self::InArena)
    }

    /// Whether its contents can be freed lazily and made volatile.
    pub fn is_private_anonymous(self) -> bool {
        matches!(self, Self::Plain | Self::Huge)
    }

    /// Whether it cannot be taken by the kernel at its owner's word.
    pub fn is_file(self) -> bool {
        !self.is_buffer() && !self.is_private_anonymous()
    }

    pub fn is_shared(self) -> bool {
        matches!(self, Self::SharedAnonymous | Self::Memfd | Self::File)
    }
}

/// How a slot's memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Munmap,
    Drop,
    Now,
}

/// What to do with the cache.
#[derive(Clone, Copy, Debug)]
pub enum CacheUse {
    Insert(Priority),
    Get,
    Hold,
    GetOrInsert,
    Remove,
}

/// What to do with a secret.
#[derive(Clone, Copy, Debug)]
pub enum SecretUse {
    Extend,
    Truncate,
    Resize,
    Clear,
    Renew { hidden: bool },
}

/// How to populate.
#[derive(Clone, Copy, Debug)]
pub struct Populate {
    pub access: Access,
    pub strategy: Strategy,
    pub threads: usize,
    /// 0 leaves it to tenure.
    pub chunk_pages: usize,
    pub in_background: bool,
    /// Cancel it when it tells of its progress for the first time.
    pub cancel: bool,
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Write,
    Check {
        direct: bool,
    },
    Populate(Populate),
    Lock(LockMode),
    Unlock(LockModes),
    LockAll(LockAll, LockMode),
    Free(FreePolicy),
    LazyFree,
    Reuse,
    Mark(Priority),
    MarkNow(Priority),
    Unmark,
    ReadVolatile,
    IsWhole,
    Purge,
    PurgeAll,
    Discard,
    Punch,
    PageOut,
    Cut,
    Renew {
        end: End,
        page_count: usize,
    },
    Residency,
    Delay {
        micros: u64,
    },
    Drain,
    Cache {
        key: usize,
        len: usize,
        what: CacheUse,
    },
    LockedFile {
        renew: bool,
    },
    Secret {
        len: usize,
        what: SecretUse,
    },
    Fork {
        steps: usize,
    },
}

/// Their names.
pub const VERBS: [&str; 28] = [
    "write",
    "check",
    "populate",
    "lock",
    "unlock",
    "lock_all",
    "free",
    "lazy_free",
    "reuse",
    "mark_volatile",
    "mark_volatile_now",
    "mark_nonvolatile",
    "read_volatile",
    "is_whole",
    "purge",
    "purge_all",
    "discard",
    "punch",
    "page_out",
    "munmap_part",
    "munmap",
    "residency",
    "hand_over_delay",
    "drain",
    "cache",
    "locked_file",
    "secret",
    "fork",
];

impl Verb {
    /// Where its name stands.
    pub fn index(&self) -> usize {
        match self {
            Self::Write => 0,
            Self::Check { .. } => 1,
            Self::Populate(_) => 2,
            Self::Lock(_) => 3,
            Self::Unlock(_) => 4,
            Self::LockAll(..) => 5,
            Self::Free(_) => 6,
            Self::LazyFree => 7,
            Self::Reuse => 8,
            Self::Mark(_) => 9,
            Self::MarkNow(_) => 10,
            Self::Unmark => 11,
            Self::ReadVolatile => 12,
            Self::IsWhole => 13,
            Self::Purge => 14,
            Self::PurgeAll => 15,
            Self::Discard => 16,
            Self::Punch => 17,
            Self::PageOut => 18,
            Self::Cut => 19,
            Self::Renew { .. } => 20,
            Self::Residency => 21,
            Self::Delay { .. } => 22,
            Self::Drain => 23,
            Self::Cache { .. } => 24,
            Self::LockedFile { .. } => 25,
            Self::Secret { .. } => 26,
            Self::Fork { .. } => 27,
        }
    }
}

/// One operation, on `count` pages of a slot from the page `first` on.
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

/// How long a secret may be.
pub const SECRET_BYTES: usize = 20_000;

/// Of what is left when pages are cut out, the longer piece is kept: its first
/// page and how many there are. All of it is kept when nothing else would be left.
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
    fn of_a_cut_the_longer_piece_is_kept() {
        assert_eq!(kept(10, 0, 10), (0, 10));
        assert_eq!(kept(10, 0, 4), (4, 6));
        assert_eq!(kept(10, 6, 4), (0, 6));
        assert_eq!(kept(10, 5, 1), (0, 5));
        assert_eq!(kept(10, 2, 1), (3, 7));
    }
}
