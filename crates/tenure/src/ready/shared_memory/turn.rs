//! Turns: `fallocate` and `pwrite` hold the inode's lock, and a process that waits for that sleeps
//! until all those before it have run. So processes take turns before they call, and a
//! process whose turn does not come soon does something else.

use std::time::{Duration, Instant};

use super::lease::Held;
use super::processes::Attachment;
use super::table::Table;
use crate::ground::sys::{Errno, shared_file};

/// How long one turn is waited for, outside of calls of a program.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a call of a program waits for its turns, all of them together. A process that is
/// not given a CPU keeps its turn, and one that waits too long refuses a value.
pub(super) const CALL_PATIENCE: Duration = Duration::from_millis(50);

/// The bytes that one call allocates, frees or writes: a part of a millisecond.
const CHUNK_BYTES: u64 = 1 << 20;

/// How often a call looks for the end of another's turn before it sleeps.
const SPINS: u32 = 100;

/// The turn of a thread; dropping it lets others change pages.
pub(crate) struct Turn<'a> {
    table: &'a Table,
    attachment: Attachment,
    /// `None` after a wait that was too long.
    held: Option<Held<'a>>,
}

impl Table {
    /// Waits for this thread's turn; `None` if it does not come soon.
    pub(crate) fn turn(&self, attachment: &Attachment) -> Option<Turn<'_>> {
        let turn = self.turn_or_go(attachment);
        turn.held.is_some().then_some(turn)
    }

    /// Waits for this thread's turn, but not long: then the kernel lets it wait.
    pub(crate) fn turn_or_go(&self, attachment: &Attachment) -> Turn<'_> {
        Turn {
            table: self,
            attachment: *attachment,
            held: self.wait_for_turn(attachment),
        }
    }

    fn wait_for_turn(&self, attachment: &Attachment) -> Option<Held<'_>> {
        let writer = &self.header().writer;
        for _ in 0..SPINS {
            if let Some(held) = self.try_lease(writer, attachment) {
                return Some(held);
            }
            std::hint::spin_loop();
        }
        let limit = attachment.time_left().unwrap_or(PATIENCE);
        let (begin, mut pause) = (Instant::now(), Duration::from_micros(50));
        while begin.elapsed() < limit {
            std::thread::sleep(pause);
            if let Some(held) = self.try_lease(writer, attachment) {
                return Some(held);
            }
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        None
    }
}

impl Turn<'_> {
    /// Lets another thread have its turn.
    fn pass(&mut self) {
        self.held = None;
        self.held = self.table.wait_for_turn(&self.attachment);
    }

    /// Writes the bytes.
    pub(crate) fn write(&mut self, bytes: &[u8], start: u64) -> Result<(), Errno> {
        let chunks = bytes.chunks(CHUNK_BYTES as usize);
        self.in_chunks(chunks, start, |fd, chunk, at| {
            shared_file::write(fd, chunk, at)?;
            Ok(chunk.len() as u64)
        })
    }

    /// Allocates pages.
    pub(crate) fn allocate(&mut self, start: u64, len: u64) -> Result<(), Errno> {
        self.in_chunks(chunks(len), start, |fd, bytes, at| {
            shared_file::allocate(fd, at, bytes)?;
            Ok(bytes)
        })
    }

    /// Frees pages, in all processes.
    pub(crate) fn punch(&mut self, start: u64, len: u64) -> Result<(), Errno> {
        self.in_chunks(chunks(len), start, |fd, bytes, at| {
            shared_file::punch(fd, at, bytes)?;
            Ok(bytes)
        })
    }

    fn in_chunks<T>(
        &mut self,
        chunks: impl Iterator<Item = T>,
        start: u64,
        call: impl Fn(std::os::fd::BorrowedFd<'_>, T, u64) -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        let mut at = start;
        for chunk in chunks {
            if at > start {
                self.pass();
            }
            at += call(self.table.fd(), chunk, at)?;
        }
        Ok(())
    }
}

/// Whether one call frees so many bytes, so that a call that fails has freed none.
pub(crate) fn is_one_chunk(len: u64) -> bool {
    len <= CHUNK_BYTES
}

fn chunks(len: u64) -> impl Iterator<Item = u64> {
    let starts = (0..len).step_by(CHUNK_BYTES as usize);
    starts.map(move |start| CHUNK_BYTES.min(len - start))
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::super::layout::{Geometry, Kind};
    use super::super::word::MAX_PRIORITY;
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn late_call_evicts_nothing_and_takes_only_a_turn_that_is_free() {
        let kind = Kind::Arena {
            object_bytes: page_size() as u64,
        };
        let geometry = Geometry {
            kind,
            count: 1,
            seed: [0; 2],
        };
        let table = file::create_memfd(geometry).unwrap();
        let own = table.attach().unwrap();
        let late = own.within(Duration::ZERO);
        assert!(late.is_late() && !own.is_late());
        assert_eq!(table.claim_free(&own, 0), Some(0));
        let len = page_size() as u64;
        assert!(table.publish_live(&own, 0, len, 0, false).is_some());
        assert_eq!(table.evict(&late, len, MAX_PRIORITY), Some(0));
        assert!(table.turn(&late).is_some(), "nobody else has it");
        assert_eq!(table.evict(&own, len, MAX_PRIORITY), Some(len));
        let hour = own.within(Duration::from_secs(3600));
        assert!(!hour.is_late() && own.time_left().is_none());
    }
}
