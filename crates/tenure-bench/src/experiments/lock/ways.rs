//! The ways to read a file while what has been read stays locked.

use std::rc::Rc;

use rustix::mm;
use tenure::{LockMode, Mapping};

use super::data::{Cache, Data, Reads};
use super::handler::LockedOnTouch;
use crate::measure::prelude::*;

pub const PLAIN: &str = "plain mmap, no lock";
pub const TENURE: &str = "tenure, lock on fault";
const EACH_READ: (&str, usize) = ("mlock before each read", 1);
/// The handlers and how many pages each opens at a time.
const HANDLERS: [(&str, usize); 3] = [
    ("SIGSEGV handler, 1 page", 1),
    ("SIGSEGV handler, 8 pages", 8),
    ("SIGSEGV handler, 16 pages", 16),
];
/// The ways that lock page by page, each time splitting a mapping.
pub const STEPS: [(&str, usize); 4] = [EACH_READ, HANDLERS[0], HANDLERS[1], HANDLERS[2]];
/// The ways that compete: neither the slow ones, nor what brings in all of the file
/// beforehand.
pub const COMPETING: [&str; 3] = [PLAIN, HANDLERS[2].0, TENURE];

pub const TOTAL: &str = "total";
pub const LOCKED: &str = "locked";

/// Makes all ways, in the order of the reference. The first is the baseline: the floor,
/// which locks nothing.
pub fn all(reads: &Rc<Reads>, cache: Cache) -> Vec<Way> {
    let on = Reading { reads, cache };
    let plain = on.way(PLAIN, Data::map, read_plain).baseline();
    let whole = on.way("mlock of the whole", lock_whole, read_plain);
    let each_read = on.way(EACH_READ.0, Data::map, lock_each_read);
    let mut ways = vec![plain, whole, each_read];
    ways.extend(HANDLERS.map(|(name, pages)| {
        let step = pages * tenure::page_size();
        let set_up = move |data: &Data| LockedOnTouch::new(data.map()?, step);
        on.way(name, set_up, read_guarded)
    }));
    let set_up = |data: &Data| on_fault(data, data.len);
    ways.push(on.way(TENURE, set_up, read_on_fault).tenure());
    ways
}

/// Maps the first `len` bytes of the file and locks them on fault.
pub fn on_fault(data: &Data, len: usize) -> Result<Mapping> {
    // SAFETY: the file has no name and nobody writes to it any more.
    let mapping = unsafe { Mapping::file(&data.file) }.len(len).map()?;
    mapping.lock(.., LockMode::OnFault)?;
    Ok(mapping)
}

fn lock_whole(data: &Data) -> Result<RawMapping> {
    let mapping = data.map()?;
    mapping.lock()?;
    Ok(mapping)
}

fn read_plain(reads: &Reads, mapping: &RawMapping) -> Result<u64> {
    // SAFETY: the whole file is mapped for reading.
    unsafe { reads.read(mapping.bytes().as_ptr(), |_| Ok(())) }
}

fn lock_each_read(reads: &Reads, mapping: &RawMapping) -> Result<u64> {
    let page = tenure::page_size();
    let lock_page = |address: *const u8| {
        let start = address.map_addr(|address| address & !(page - 1));
        // SAFETY: a page of the mapping; locking changes no contents.
        unsafe { mm::mlock(start.cast_mut().cast(), page) }.context("mlock of a page")
    };
    // SAFETY: the whole file is mapped for reading.
    unsafe { reads.read(mapping.bytes().as_ptr(), lock_page) }
}

fn read_guarded(reads: &Reads, guarded: &LockedOnTouch) -> Result<u64> {
    // SAFETY: the handler makes every page of the mapping readable.
    let sum = unsafe { reads.read(guarded.as_ptr(), |_| Ok(())) }?;
    guarded.check()?;
    Ok(sum)
}

fn read_on_fault(reads: &Reads, mapping: &Mapping) -> Result<u64> {
    // SAFETY: the whole file is mapped for reading.
    unsafe { reads.read(mapping.as_slice().as_ptr(), |_| Ok(())) }
}

struct Reading<'a> {
    reads: &'a Rc<Reads>,
    cache: Cache,
}

impl Reading<'_> {
    /// Makes a way from how it sets up and how it reads; both are timed.
    fn way<M: 'static>(
        &self,
        name: &'static str,
        set_up: impl Fn(&Data) -> Result<M> + 'static,
        read: fn(&Reads, &M) -> Result<u64>,
    ) -> Way {
        let cache = self.cache;
        let [before, during, after] = [(); 3].map(|()| self.reads.clone());
        Way::new(
            name,
            move || before.data.bring_cache_to(cache),
            move |(), recorder: &mut Recorder<'_>| {
                let (memory, set_up_seconds) = recorder.measure(|| set_up(&during.data));
                let memory = memory?;
                let (sum, read_seconds) = recorder.measure(|| read(&during, &memory));
                recorder.record("set up", Unit::Seconds, set_up_seconds);
                recorder.record("reads", Unit::Seconds, read_seconds);
                recorder.record(TOTAL, Unit::Seconds, set_up_seconds + read_seconds);
                Ok((sum?, memory))
            },
            move |(sum, _memory), recorder| {
                let locked_bytes = kernel::rollup_bytes("Locked:")?;
                after.check(sum, (name != PLAIN).then_some(locked_bytes))?;
                recorder.record(LOCKED, Unit::Bytes, locked_bytes as f64);
                Ok(())
            },
        )
    }
}
