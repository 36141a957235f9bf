//! A page cache for SQLite that the kernel may reclaim when it needs memory.
//!
//! SQLite lets a program replace its page cache (`sqlite3_pcache_methods2`), and allows the
//! replacement to drop pages that are not in use at any time. So these are volatile memory
//! ([`tenure::volatile`]): the cache keeps them for as long as there is memory, and a page
//! that the kernel has purged is read from the database again. Nobody sets a size.
//!
//! ```no_run
//! // Before the first connection, and where no other thread uses SQLite:
//! unsafe { tenure_sqlite::install() }?;
//! # Ok::<(), tenure_sqlite::InstallError>(())
//! ```
//!
//! A program that has SQLite linked statically, as rusqlite with its feature `bundled`, passes
//! `sqlite3_config` to [`install_with`].
//!
//! - `PRAGMA cache_size` is a priority: the last so many pages of each cache are purged after
//!   all others. It also bounds what a transaction changes before SQLite writes it. Of less
//!   than 400 KiB it is a limit.
//! - While enough memory is left, pages are offered to the kernel late
//!   ([`VolatileArena::defer_offers`](tenure::VolatileArena::defer_offers)). A cache stops to
//!   grow before it is not so, and shrinks to `cache_size` while memory is short.
//! - The last eighth of these, 64 pages at most, stays in memory.
//! - `PRAGMA shrink_memory` drops all pages that are not in use.
//! - Databases in memory, and temporary tables, stay in ordinary memory.
//! - Pages of less than 4 KiB take as much memory as those of 4 KiB.
//! - `PRAGMA mmap_size` leaves nothing to cache.
//!
//! Where the kernel refuses userfaultfd, each cache holds `cache_size` pages of ordinary
//! memory, and the first one prints a line that says so.
//!
//! [`tenure::stats`] has the pages in all caches of the process, those that were found purged,
//! and those that were intact although the kernel had been offered them.
//!
//! The feature `private-heap` is for the shared library: it makes a heap of its own the global
//! allocator.
//!
//! How it works: `methods` converts SQLite's calls; `cache` is a cache, with its `index`,
//! its `unpinned` pages in `list`s, and its `page`s; `supply` and `growth` say when it may take
//! more memory, and `arenas` has that for all caches.

mod arenas;
mod cache;
mod ffi;
mod fork;
mod growth;
mod index;
mod install;
mod list;
mod message;
mod methods;
mod page;
#[cfg(feature = "private-heap")]
mod private_heap;
mod supply;
mod unpinned;

pub use ffi::{Config, Pcache, PcacheMethods, PcachePage};
pub use install::{
    InstallError, install, install_with, methods, tenure_sqlite3_install,
    tenure_sqlite3_install_with, tenure_sqlite3_methods, tenure_sqlite3_prepare,
};
