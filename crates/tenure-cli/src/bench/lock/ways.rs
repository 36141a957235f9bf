//! The ways to read a file while what has been read stays locked.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use rustix::mm;
use tenure::{LockMode, Mapping};

use super::{
    super::{
        experiment::{Recorder, Unit, Way},
        fault_handler::LockedOnTouch,
        kernel,
        raw::RawMapping,
    },
    data::{Cache, Data},
    work::Work,
};

pub const PLAIN: &str = "plain mmap, no lock";
pub const WHOLE: &str = "mlock of the whole";
pub const EACH_READ: &str = "mlock before each read";
/// The handlers and how many pages each admits at a time.
pub const HANDLERS: [(&str, usize); 3] = [
    ("SIGSEGV handler, 1 page", 1),
    ("SIGSEGV handler, 8 pages", 8),
    ("SIGSEGV handler, 16 pages", 16),
];
pub const TENURE: &str = "tenure, lock on fault";
/// The ways that lock page by page, each time splitting a mapping, and how many
/// pages at a time.
pub const STEPS: [(&str, usize); 4] = [(EACH_READ, 1), HANDLERS[0], HANDLERS[1], HANDLERS[2]];
/// The ways that compete: neither the slow ones, nor what brings in all of the
/// file beforehand.
pub const COMPETING: [&str; 3] = [PLAIN, HANDLERS[2].0, TENURE];

pub const SET_UP: &str = "set up";
pub const READS: &str = "reads";
pub const TOTAL: &str = "total";
pub const LOCKED: &str = "locked";

/// Makes all ways, in the order of the reference. The first is the baseline: the
/// floor, which locks nothing.
pub fn all(work: &Rc<Work>, cache: Cache) -> Vec<Way> {
    let reading = Reading { work, cache };
    let mut ways = vec![
        reading.plain().baseline(),
        reading.whole(),
        reading.each_read(),
    ];
    ways.extend(HANDLERS.map(|(name, pages)| reading.handler(name, pages)));
    ways.push(reading.on_fault().tenure());
    ways
}

/// What the ways of a case have in common.
struct Reading<'a> {
    work: &'a Rc<Work>,
    cache: Cache,
}

impl Reading<'_> {
    fn plain(&self) -> Way {
        self.way(PLAIN, Data::map, |work, mapping: &RawMapping| {
            // SAFETY: the whole file is mapped for reading.
            unsafe { work.read(mapping.bytes().as_ptr(), |_| Ok(())) }
        })
    }

    fn whole(&self) -> Way {
        let set_up = |data: &Data| {
            let mapping = data.map()?;
            mapping.lock()?;
            Ok(mapping)
        };
        self.way(WHOLE, set_up, |work, mapping: &RawMapping| {
            // SAFETY: the whole file is mapped for reading.
            unsafe { work.read(mapping.bytes().as_ptr(), |_| Ok(())) }
        })
    }

    fn each_read(&self) -> Way {
        self.way(EACH_READ, Data::map, |work, mapping: &RawMapping| {
            let page = tenure::page_size();
            let lock_page = |address: *const u8| {
                let start = address.map_addr(|address| address & !(page - 1));
                // SAFETY: a page of the mapping; locking changes no contents.
                unsafe { mm::mlock(start.cast_mut().cast(), page) }.context("mlock of a page")
            };
            // SAFETY: the whole file is mapped for reading.
            unsafe { work.read(mapping.bytes().as_ptr(), lock_page) }
        })
    }

    fn handler(&self, name: &'static str, pages: usize) -> Way {
        let step = pages * tenure::page_size();
        let set_up = move |data: &Data| LockedOnTouch::new(data.map()?, step);
        self.way(name, set_up, |work, guarded: &LockedOnTouch| {
            // SAFETY: the handler makes every page of the mapping readable.
            let sum = unsafe { work.read(guarded.as_ptr(), |_| Ok(())) }?;
            guarded.check()?;
            Ok(sum)
        })
    }

    fn on_fault(&self) -> Way {
        let set_up = |data: &Data| on_fault(data, data.len);
        self.way(TENURE, set_up, |work, mapping: &Mapping| {
            // SAFETY: the whole file is mapped for reading.
            unsafe { work.read(mapping.as_slice().as_ptr(), |_| Ok(())) }
        })
    }

    /// Makes a way from how it sets up and how it reads; both are timed.
    fn way<M: 'static>(
        &self,
        name: &'static str,
        set_up: impl Fn(&Data) -> Result<M> + 'static,
        read: impl Fn(&Work, &M) -> Result<u64> + 'static,
    ) -> Way {
        let cache = self.cache;
        let [before, during, after] = [(); 3].map(|()| self.work.clone());
        Way::new(
            name,
            move || before.data.bring_cache_to(cache),
            move |(), recorder: &mut Recorder<'_>| {
                let (memory, set_up_seconds) = recorder.measure(|| set_up(&during.data));
                let memory = memory?;
                let (sum, read_seconds) = recorder.measure(|| read(&during, &memory));
                recorder.record(SET_UP, Unit::Seconds, set_up_seconds);
                recorder.record(READS, Unit::Seconds, read_seconds);
                recorder.record(TOTAL, Unit::Seconds, set_up_seconds + read_seconds);
                Ok((sum?, memory))
            },
            move |(sum, memory), recorder| {
                after.check_sum(sum)?;
                let locked_bytes = kernel::locked_bytes()?;
                if name != PLAIN {
                    after.check_locked(locked_bytes)?;
                }
                recorder.record(LOCKED, Unit::Bytes, locked_bytes as f64);
                drop(memory);
                // The next sample can only start cold when nothing maps the file.
                Ok(tenure::drain(None)?)
            },
        )
    }
}

/// Maps the first `len` bytes of the file and locks them on fault.
pub fn on_fault(data: &Data, len: usize) -> Result<Mapping> {
    // SAFETY: the file has no name and nobody writes to it any more.
    let mapping = unsafe { Mapping::file(&data.file) }.len(len).map()?;
    mapping.lock(.., LockMode::OnFault)?;
    Ok(mapping)
}
