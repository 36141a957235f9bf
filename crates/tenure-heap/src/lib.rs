//! An allocator whose free memory follows memory pressure: jemalloc on pages that tenure
//! manages.
//!
//! General allocators either keep the memory of freed blocks, so that the program stays
//! as large as it ever was, or return it with each `free`, and pay for every page again
//! with the next `malloc`. This heap keeps free pages for reuse for a while, and then
//! returns them to the kernel; under memory pressure at once.
//!
//! ```
//! use tenure_heap::Heap;
//!
//! #[global_allocator]
//! static ALLOCATOR: Heap = Heap::new();
//! # fn main() {}
//! ```
//!
//! Beneath [`Heap`] are functions with the meaning of `malloc(3)` and its relatives:
//! [`allocate()`], [`allocate_zeroed`], [`reallocate()`], [`deallocate`], [`usable_size`];
//! [`owns`] tells the heap's blocks from others by their address. The heap answers a
//! request that it does not serve with null, and the caller asks another allocator: it
//! *fails open*.
//!
//! # The decay of free pages
//!
//! The states have jemalloc's names; the glossary in ARCHITECTURE.md has the other terms.
//!
//! | state | for | memory | reuse costs |
//! | --- | --- | --- | --- |
//! | dirty | [`dirty_decay`](HeapOptions::dirty_decay), 4 s | stays | no system call, no page fault |
//! | muzzy | at most [`muzzy_decay`](HeapOptions::muzzy_decay), 1 s | the kernel may reclaim it (MADV_FREE) | page faults where the kernel has reclaimed it |
//! | retained | ever after | none (MADV_DONTNEED); the addresses stay | page faults |
//!
//! Under memory [pressure](tenure::pressure) pages decay eight times as fast, and under
//! severe pressure all free pages are returned at once. Dirty pages never take more than an
//! eighth of the [headroom](tenure::Headroom) of the machine and the cgroup. Where the kernel
//! can swap, a quarter of what the blocks have may stay dirty all the same, within an eighth of
//! the swap that is left: a program that allocates before it frees needs it again at once.
//! Pages that another process has, too, since a fork become retained in place of muzzy, and so do
//! all where the kernel has merged pages of the process (KSM): it could discard them there as well.
//!
//! The decay thread (`tenure-decay`, all signals blocked) and jemalloc's background thread do
//! this. They start when blocks are freed and the heap has 8 MiB, and exit after ten seconds
//! in which next to nothing was free. When they start, and when the pressure changes, jemalloc
//! begins its count anew, and may return at once what is free by then. If no thread can be
//! started, free pages are returned at once.
//!
//! # What tenure adds to jemalloc
//!
//! - *Addresses* are mapped as they are needed, on boundaries of huge pages.
//! - *A thread does not wait for the size of what it frees*, nor, when it exits, for that of
//!   its arena. Where a thread of the program does purge, as in a child right after a fork,
//!   a range of 4 MiB or more is moved away (mremap), which takes microseconds, and freed by
//!   the decay thread.
//! - *Growth*: a block of 1 MiB or more that cannot grow in place is not copied: its page
//!   tables are moved to a larger one.
//! - *calloc* of 4 MiB and more discards the pages in place of clearing them: the program
//!   may touch few of them.
//! - *Populated pages*: a block of 4 MiB or more has its missing pages from the
//!   [pool](tenure::pool), if that is on.
//! - *Huge pages* for blocks of 16 MiB and more, which begin on a boundary of 2 MiB, where the
//!   kernel gives them to those who ask: as many as the block fills. One has 2 MiB with pages of
//!   4 KiB, 32 MiB with 16 KiB, and 512 MiB with 64 KiB.
//!
//! # Forks
//!
//! jemalloc's fork handlers take its locks, so a fork handler of the program's own must not
//! wait for a thread that allocates, unless it was registered later:
//! [`register_fork_handlers`]. A child of a bare `clone(2)`, for which no handler runs, must
//! not allocate before it calls exec. What another thread is purging during a fork is lost
//! to the child.
//!
//! # Limits
//!
//! - A signal handler must not allocate or free, as with the C library.
//! - A block of 4 MiB or more that is freed twice aborts the program with a message, unless a
//!   smaller one has come to lie there; one of more than 64 KiB and up to 1 MiB mostly, if
//!   nothing is allocated or freed between. Other misuse is not detected.
//! - Each thread keeps some freed blocks of up to 64 KiB for itself, which do not decay while it
//!   sleeps. Of larger ones, up to 1 MiB, all threads together keep 40 MiB at most, and no
//!   more than may be dirty, while they request such, and a tenth of a second longer.
//! - jemalloc must not be used beside the heap in one program by other means
//!   (`tikv-jemallocator`): it is one jemalloc, whose pages the heap manages.
//! - Addresses are not given back: the virtual size stays at its peak.
//! - jemalloc's pages have a size that is set when it is built, and the heap stays off where the
//!   kernel's are larger. For aarch64 build with `JEMALLOC_SYS_WITH_LG_PAGE=16`, which serves
//!   pages of 4, 16 and 64 KiB; without the variable the size is that of the machine that
//!   builds, or 4 KiB when cross-compiling.
//! - Under severe pressure without swap free pages are returned ten times a second, also those
//!   that the program is about to use again. With 950 MiB in two programs in a cgroup of 1 GiB,
//!   none was killed; with jemalloc and tcmalloc one was.
//! - Near a cgroup's limit without swap a program that frees bursts of one size and allocates
//!   those of another can be killed where it lives with the C library. The headroom is read ten
//!   times a second, and between two readings blocks of 64 KiB and more are counted. With 256
//!   MiB, and 230 in use at a time, it was killed in 5 of 5 runs, and in 1 of 5 with 160 and
//!   mappings of its own; with jemalloc in all of either.
//! - With swap, two programs that needed 1.3 GiB there worked 0.82 times as fast as with glibc
//!   where they wrote a word in each page, and 0.94 times where they wrote whole blocks; five
//!   times and twice as fast as with all free pages returned. With tcmalloc one was killed.
//! - The heap's peak is not the lowest: what is dirty stays beside blocks of other sizes that do
//!   not fit there. Returning it as the heap grows was measured, with phases of other sizes: a
//!   peak of 1.9 to 2.4 GiB in place of 3.0, for 1.3 to 1.8 times the time.
//! - Where the kernel gives huge pages to all memory (`transparent_hugepage=always`), a few small
//!   blocks can hold some of 2 MiB: a process on two CPUs held 6 MiB in three of them after it
//!   had freed 60 MiB.
//! - A program that applies `madvise`, `mprotect` or `mlock` to the memory of a block must
//!   undo that before it frees the block or lets `realloc` copy it, as with any allocator that
//!   reuses memory. After `MADV_WIPEONFORK` or `MADV_DONTFORK` the children of a fork find later
//!   blocks there zeroed or missing. (The C library unmaps large blocks, mostly.)
//! - In a process that locks all memory (mlockall), free pages are returned as well. What is
//!   allocated there again, and a calloc of 4 MiB and more, has page faults at its first use,
//!   and is locked from then on.
//! - Once the heap has threads, the kernel refuses what it allows to processes of one thread:
//!   `unshare(CLONE_NEWUSER)`, `setns` with a user or a mount namespace.
//! - A program whose main thread ends by `pthread_exit` ends up to five seconds after its last
//!   thread. Its `atexit` handlers then run in a thread of tenure's, whose signals are blocked
//!   and whose stack has 2 MiB.

#![warn(missing_docs)]

mod allocate;
mod cache;
mod decay_thread;
mod deferred;
#[doc(hidden)]
pub mod entry;
mod fork;
mod groups;
mod heap;
mod huge;
mod jemalloc;
mod late;
mod main_thread;
mod misuse;
mod moves;
mod options;
mod pages;
mod pool;
mod reallocate;
mod start;
mod stats;
mod sys;
mod table;

pub use allocate::{allocate, allocate_zeroed, deallocate, owns, usable_size};
#[doc(hidden)]
pub use allocate::{allocate_small, deallocate_simple, deallocate_with};
#[doc(hidden)]
pub use decay_thread::publish as publish_by_decay_thread;
pub use fork::register_fork_handlers;
pub use heap::Heap;
#[doc(hidden)]
pub use moves::count as moved_blocks;
pub use options::HeapOptions;
pub use reallocate::reallocate;
#[doc(hidden)]
pub use start::{close_short_way, small_limit};
pub use start::{start, threshold_bytes};
pub use stats::{HeapStats, stats, trim};
