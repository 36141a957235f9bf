//! How long another thread's `mmap` waits while anonymous memory is locked at once.

use std::rc::Rc;

use rustix::mm::{MapFlags, mlock};
use tenure::{LockMode, Mapping};

use super::data::Data;
use super::ways::TOTAL;
use crate::measure::prelude::*;

/// The length that the other thread maps and unmaps.
const PROBE_LEN: usize = 64 << 10;

/// Makes the case, with as much memory as the file has bytes.
pub fn case(data: &Rc<Data>) -> Case {
    let len = data.len;
    let by_mlock = move || {
        let memory = RawMapping::anonymous(len, MapFlags::PRIVATE)?;
        // SAFETY: the mapping is this way's own; locking changes no contents.
        unsafe { mlock(memory.bytes().as_ptr().cast_mut().cast(), len) }.context("mlock")?;
        Ok(memory)
    };
    let by_tenure = move || Ok(Mapping::anonymous(len).map_locked(LockMode::Now)?);
    let ways = vec![
        way("mlock", len, by_mlock).baseline(),
        way("tenure, lock now", len, by_tenure).tenure(),
    ];
    let (size, probe) = (bytes_text(len as f64), bytes_text(PROBE_LEN as f64));
    let table = format!("{size} of memory, locked while another thread maps and unmaps {probe}");
    Case::new("waiting", ways).in_table(&table).short()
}

fn way<M: 'static>(name: &'static str, len: usize, lock: impl Fn() -> Result<M> + 'static) -> Way {
    Way::new(
        name,
        || Ok(()),
        move |(), recorder: &mut Recorder<'_>| {
            let clock = recorder.clock();
            let locking = || recorder.time(TOTAL, &lock);
            let (locked, longest) = probe::longest_wait(clock, PROBE_LEN, locking)?;
            let name = "another thread's mmap waits at most";
            recorder.record(name, Unit::Seconds, longest);
            locked
        },
        move |_memory, _| {
            let bytes = kernel::rollup_bytes("Locked:")?;
            ensure!(bytes >= len as u64, "{bytes} bytes locked, not {len}");
            Ok(())
        },
    )
}
