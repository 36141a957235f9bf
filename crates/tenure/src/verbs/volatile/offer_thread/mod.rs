//! The offer thread: offers what has been volatile for a while, and purges under memory
//! pressure.
//!
//! There is one such thread. The first mark starts it, and it exits 10 s after the last
//! volatile memory and the last arena are gone, and closes the userfaultfd. Where `main` has
//! called pthread_exit(3) and all other threads of the program have ended, it ends the process
//! within a second. It offers what has been volatile for longer than the offer
//! delay, neighbours together, and holds the ENGINE lock for about a millisecond at a
//! time: large ranges are offered in chunks. A forked child has no such thread until it
//! calls one of the functions of volatile memory, because a fork handler can start none. An object that is unmarked intact soon after it was offered waits twice as long
//! the next time, up to eight times as long: where threads outnumber CPUs, a loop that
//! returned to each buffer every 110 ms had it offered for nothing each time.
//!
//! A `VolatileCache` that evicts values for new ones, as SQLite's page cache, reads the limits every
//! few milliseconds. If it finds that other processes take the memory that is left, the thread offers
//! everything at once, every 5 ms: of a cache whose values are all in use, within the offer delay, the
//! kernel could reclaim nothing, and killed one of the processes of a cgroup of 128 MiB when
//! another took 75 MiB.
//!
//! Under memory pressure the thread offers everything at once, and purges the rest of
//! each object of which the kernel has purged a page. Under severe pressure it purges by
//! priority and age, an eighth of all that is volatile at a time. Where userfaultfd is
//! unavailable nothing is offered, and this is the only way in which volatile memory is
//! purged. If the program has closed the userfaultfd, and no thread of
//! `ground/sys/private_files` keeps it open, the offer thread notices that within a second
//! and registers everything anew.
//!
//! The thread parks, then reads the words of all objects once more; a marking thread
//! changes its word, then reads whether the thread is parked. Both are sequentially
//! consistent, so that one of the two sees the other.

mod batches;
mod deferral;
mod delay;
mod purge;
mod retry;
mod short;
mod thread;

pub(crate) use batches::{offer_in_chunks, offer_object};
pub use delay::{DEFAULT_DELAY, set_offer_delay};
pub(crate) use delay::{is_offered_at_once, offer_delay};
pub use short::offer_if_short;
pub(crate) use short::{max_reading_age, sixteenth_of_limit};
pub(crate) use thread::{notify_marked, resume_in_child};
