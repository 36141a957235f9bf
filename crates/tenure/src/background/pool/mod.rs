//! The page pool: zeroed pages of this process, ready for the next populate.
//!
//! The kernel zeroes every page that it gives to a program, and takes ten times as long for
//! it as the zeroing alone. With a pool, a thread populates memory ahead of need, workers
//! write zeros over memory that its owner [recycles](crate::Mapping::recycle), and
//! [populate](crate::populate) takes pages from there before it asks the kernel. The pool is
//! off until [`configure`] turns it on.
//!
//! Memory that is released otherwise stays out of the pool: the kernel may still refer to its
//! pages, in a pipe or a socket, and does not tell. A program that knows that none of its
//! pages is there has it enter as well ([`PoolOptions::recycle_released`]).
//!
//! | what | how | kernel |
//! | --- | --- | --- |
//! | the pool fills itself up to `prefill_bytes` | MADV_POPULATE_WRITE | Linux 5.14 |
//! | recycled memory enters the pool: whole blocks of 2 MiB of a [`Mapping`](crate::Mapping) or range of 4 MiB and more | UFFDIO_MOVE, then non-temporal stores of zeros | Linux 6.8, userfaultfd |
//! | [`MappingBuilder::map_populated`](crate::MappingBuilder::map_populated) takes a new mapping of 32 MiB and more | one `mremap(2)` | Linux 5.7 |
//! | `populate` for writing of private anonymous memory takes whole blocks that are missing | UFFDIO_MOVE | Linux 6.8, userfaultfd |
//!
//! UFFDIO_MOVE puts a page only to where none is, so that no write of another thread is lost,
//! and leaves the mapping as it is: protection, advice, name and policy. Memory that is
//! locked, under a NUMA policy of its own, or registered with another userfaultfd is
//! populated by the kernel, and so is every part for which the pool has no block.
//!
//! ```
//! use tenure::{Access, Mapping, pool::{self, PoolOptions}};
//!
//! pool::configure(&PoolOptions::new().max_bytes(64 << 20))?;
//! let table = Mapping::anonymous(16 << 20).map_populated()?;
//! table.recycle()?; // Its pages go to the pool, and from there into the next one.
//! tenure::drain(None)?;
//! let table = Mapping::anonymous(16 << 20).map_populated()?;
//! assert!(table.as_slice().iter().all(|&byte| byte == 0));
//! # pool::configure(&PoolOptions::new())?;
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # What it costs
//!
//! The memory in the pool counts as used by the process, though not as what
//! [`Headroom`](crate::Headroom) lacks. It is given up in four steps:
//!
//! * A block that nobody has taken for five seconds becomes lazily free (MADV_FREE): the
//!   kernel takes it when it needs memory, and nothing is lost, because it is zeros. So does
//!   each block at once where less than some GiB of memory are left, so that a program
//!   that fills a cgroup to its limit is not killed for the pool.
//! * Under [pressure](crate::pressure) half of the pool is returned to the kernel, and under
//!   severe pressure all of it.
//! * Before a call of tenure fails because memory is unavailable, the pool is emptied.
//! * A child of `fork` has no pool; neither has one of `_Fork` or `clone`, nor can it turn
//!   one on.
//!
//! A thread, `tenure-pool`, fills and shrinks it, and ends when the pool is off.
//!
//! Recycling 4 GiB of huge pages takes 0.07 s of CPU time, as much as writing zeros to memory
//! that is there does by itself (57 GB/s with stores of 32 bytes past the caches, 30 GB/s with
//! `memset`); the kernel takes 0.48 s to free and populate as much. For base pages the moves
//! come on top: 0.26 s instead of 1.6 s.
//!
//! # Under programs that do not know it
//!
//! `tenure run --pool=SIZE` fills the pool from the first mapping of a process on that is
//! populated (`--populate`), and such mappings take from it; with `--pool-released`, what the
//! program unmaps (`--munmap`) enters it. The mappings that malloc makes are faulted in by
//! their first use, and numpy's arrays are such. With `--heap`, blocks of 4 MiB and more take
//! what is there of the pages that they are to have, base pages below 16 MiB and huge ones
//! above where the kernel gives those who ask; they do not start filling it, because most of
//! them are memory that the heap has kept.
//!
//! # When not to use it
//!
//! - For programs that only call malloc: nothing would take from it.
//! - For programs that seldom release and populate large memory: it would lie idle.
//! - Where other processes need the memory more: they cannot take what is in the pool before
//!   it is idle.
//! - Beside `mlockall(2)`, which locks the pool's addresses as well, and so populates all of
//!   them.
//! - Under a RLIMIT_DATA or RLIMIT_AS: all of `max_bytes` counts.
//!
//! # NUMA
//!
//! On machines with several nodes a block remembers the node of its first page, where
//! `move_pages(2)` tells. Blocks of the node that the calling thread runs on are given first,
//! and others where none of these is left. The thread fills the pool from the node that it
//! happens to run on. Nothing of this was measured on a machine with two nodes; in particular
//! not whether memory of another node, used for long, costs more than the kernel takes to
//! zero memory nearby.

mod arena;
mod give;
mod options;
mod recycle;
mod shrink;
mod state;
mod thread;

#[doc(hidden)]
pub use give::fill_missing;
pub use options::{PoolOptions, PoolStats, configure, stats};

pub(crate) use give::{fill, has_blocks_for, map_mapping};
pub(in crate::background) use recycle::{is_recycling, recycle};
pub(crate) use shrink::empty;
pub(in crate::background) use shrink::without_recycling;
pub(crate) use state::{recycles_released, register_fork_handlers};

/// The unit of the pool, whatever the page size: a huge page of most machines.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;
