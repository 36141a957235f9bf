//! The segments of a shard, in queues.

use std::ptr::NonNull;

use super::entries::SegmentId;
use super::segment::{Attached, Segment};
use crate::ground::sys::page_size;
use crate::observation::stats::CACHE_BYTES;
use crate::verbs::volatile::{Pins, Priority};

/// Small values start at multiples of so many bytes.
pub(super) const GRAIN: usize = 8;

/// The size of a segment of small values: a few pages, so that little is left at its end.
pub(super) fn shared_bytes() -> usize {
    (16 << 10).max(page_size())
}

/// Values up to this share segments, five of them at least. With pages of 4 KiB a larger one
/// leaves a quarter of its page unused, or has several pages.
pub(super) const MAX_SMALL_BYTES: usize = 3 << 10;

/// A value whose key is longer has a segment of its own, whose size counts the key.
pub(super) const MAX_SMALL_KEY_BYTES: usize = 200;

/// The queues of S3-FIFO. A new value begins on probation: if it was not found until it
/// comes to the head of that queue, it is evicted, so that a scan does not displace what is
/// used again. Others go on to the main queue, where each find gives them one more round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Probation,
    Main,
}

/// How much of a priority is on probation: one part in so many.
const PROBATION_DIVISOR: usize = 10;

/// A segment of the shard. A look-up reads the first four fields, which are one cache line;
/// in the first of them the compiler keeps that a slot is empty.
#[repr(C, align(64))]
pub(super) struct Record {
    /// The hashes of the entries that were put into it; some may be elsewhere by now.
    pub(super) members: Vec<u32>,
    /// Of the segment, at hand for look-ups.
    pub(super) pins: Pins,
    pub(super) address: NonNull<Segment>,
    start: NonNull<u8>,
    /// How far it is filled, in bytes.
    pub(super) filled: usize,
    pub(super) segment: Attached,
    /// How many values are in it, or are being made in it.
    pub(super) live: u32,
    /// Of small values.
    pub(super) is_shared: bool,
    pub(super) queue: Queue,
    priority: Priority,
    before: Option<SegmentId>,
    after: Option<SegmentId>,
}

// SAFETY: of the pointer only the address is used, but for a value that is pinned.
unsafe impl Send for Record {}
// SAFETY: as above. A shared reference changes nothing but the pins, which are atomic.
unsafe impl Sync for Record {}

impl Record {
    /// Returns the address of the first byte.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

#[derive(Clone, Copy, Default)]
struct List {
    first: Option<SegmentId>,
    last: Option<SegmentId>,
    bytes: usize,
}

/// A hit reads the first field.
#[repr(C)]
pub(super) struct Segments {
    slots: Vec<Option<Record>>,
    free: Vec<SegmentId>,
    lists: [[List; 2]; Priority::ALL.len()],
    /// The segments that small values are put into.
    open: [[Option<SegmentId>; 2]; Priority::ALL.len()],
}

fn slot(id: SegmentId) -> usize {
    id.get() as usize - 1
}

impl Drop for Segments {
    fn drop(&mut self) {
        CACHE_BYTES.sub(self.bytes());
    }
}

impl Segments {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            lists: Default::default(),
            open: Default::default(),
        }
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<&Record> {
        self.slots.get(slot(id))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Record> {
        self.slots.get_mut(slot(id))?.as_mut()
    }

    /// Returns the record if it is still that of the segment.
    pub(super) fn of(&mut self, id: SegmentId, segment: *const Segment) -> Option<&mut Record> {
        let record = self.get_mut(id)?;
        std::ptr::eq(&raw const **record.segment, segment).then_some(record)
    }

    /// Adds a segment at the end of its queue.
    pub(super) fn add(
        &mut self,
        segment: Attached,
        queue: Queue,
        priority: Priority,
        is_shared: bool,
    ) -> SegmentId {
        let record = Record {
            pins: segment.pins(),
            address: Segment::address(&segment),
            start: segment.start(),
            segment,
            members: Vec::new(),
            live: 0,
            filled: 0,
            is_shared,
            queue,
            priority,
            before: None,
            after: None,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            SegmentId::try_from(self.slots.len() as u32).expect("fewer segments than bytes")
        });
        CACHE_BYTES.add(record.segment.memory_bytes());
        self.slots[slot(id)] = Some(record);
        self.link(id);
        if is_shared {
            self.open[priority as usize][queue as usize] = Some(id);
        }
        id
    }

    /// Removes a segment. The caller drops it without the shard's lock.
    pub(super) fn remove(&mut self, id: SegmentId) -> Option<Record> {
        CACHE_BYTES.sub(self.get(id)?.segment.memory_bytes());
        self.unlink(id);
        self.close(id);
        let record = self.slots[slot(id)].take();
        self.free.push(id);
        record
    }

    /// Removes all segments.
    pub(super) fn take_all(&mut self) -> Vec<Record> {
        let mut all = std::mem::replace(self, Self::new());
        std::mem::take(&mut all.slots)
            .into_iter()
            .flatten()
            .collect()
    }

    /// Has no further values put into the segment.
    pub(super) fn close(&mut self, id: SegmentId) {
        let open = self.open.iter_mut().flatten();
        open.filter(|open| **open == Some(id))
            .for_each(|open| *open = None);
    }

    /// Returns the segment that small values are put into.
    pub(super) fn open(&self, priority: Priority, queue: Queue) -> Option<SegmentId> {
        self.open[priority as usize][queue as usize]
    }

    /// Moves a segment to the end of a queue.
    pub(super) fn move_to_end(&mut self, id: SegmentId, queue: Queue) {
        self.unlink(id);
        if let Some(record) = self.get_mut(id) {
            record.queue = queue;
        }
        self.link(id);
    }

    /// Returns the head of the queue to evict from, or of the other one.
    pub(super) fn victim(&self, priority: Priority, is_swapped: bool) -> Option<SegmentId> {
        let [probation, main] = self.lists[priority as usize];
        let bytes = probation.bytes + main.bytes;
        let is_long = probation.bytes > bytes / PROBATION_DIVISOR;
        match is_long != is_swapped {
            true => probation.first.or(main.first),
            false => main.first.or(probation.first),
        }
    }

    /// Returns the number of segments, or more.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the bytes of all segments.
    pub(super) fn bytes(&self) -> usize {
        self.lists.iter().flatten().map(|list| list.bytes).sum()
    }

    /// Returns the bytes of the segments of this and lower priorities that have no pin.
    pub(super) fn idle_bytes(&self, max_priority: Priority) -> usize {
        let records = self.slots.iter().flatten();
        let may_go = |record: &&Record| record.priority <= max_priority && record.segment.is_idle();
        let idle = records.filter(may_go);
        idle.map(|record| record.segment.memory_bytes()).sum()
    }

    /// Returns the first segment at a number or after it, without the ones that are gone.
    pub(super) fn from(&self, number: usize) -> Option<(SegmentId, &Record)> {
        let records = self.slots.iter().enumerate().skip(number).take(16);
        let mut found = records.filter_map(|(at, record)| {
            Some((SegmentId::try_from(at as u32 + 1).ok()?, record.as_ref()?))
        });
        found.next()
    }

    fn list(&mut self, id: SegmentId) -> Option<&mut List> {
        let record = self.get(id)?;
        let (priority, queue) = (record.priority, record.queue);
        Some(&mut self.lists[priority as usize][queue as usize])
    }

    fn link(&mut self, id: SegmentId) {
        let bytes = self.memory_bytes(id);
        let Some(list) = self.list(id) else { return };
        list.bytes += bytes;
        let last = list.last.replace(id);
        if last.is_none() {
            list.first = Some(id);
        }
        if let Some(record) = self.get_mut(id) {
            (record.before, record.after) = (last, None);
        }
        if let Some(last) = last.and_then(|last| self.get_mut(last)) {
            last.after = Some(id);
        }
    }

    fn unlink(&mut self, id: SegmentId) {
        let bytes = self.memory_bytes(id);
        let Some(record) = self.get(id) else { return };
        let (before, after) = (record.before, record.after);
        if let Some(before) = before.and_then(|before| self.get_mut(before)) {
            before.after = after;
        }
        if let Some(after) = after.and_then(|after| self.get_mut(after)) {
            after.before = before;
        }
        let Some(list) = self.list(id) else { return };
        list.bytes -= bytes;
        if before.is_none() {
            list.first = after;
        }
        if after.is_none() {
            list.last = before;
        }
    }

    fn memory_bytes(&self, id: SegmentId) -> usize {
        self.get(id)
            .map_or(0, |record| record.segment.memory_bytes())
    }
}
