//! A second thread that measures how long it waits for its own memory mappings.

use std::sync::{Arc, Barrier};
use std::{thread, time::Duration};

use anyhow::Result;
use rustix::mm::MapFlags;

use super::{clock::Clock, memory::RawMapping};

/// The pause between two probes: rare enough to leave the CPU to the work.
const PAUSE: Duration = Duration::from_micros(200);

/// Does `work` while another thread maps and unmaps `len` bytes over and over,
/// and returns the answer and the longest time, in seconds, that the pair took.
pub fn longest_wait<T>(
    clock: &dyn Clock,
    len: usize,
    work: impl FnOnce() -> T,
) -> Result<(T, f64)> {
    let probe_once = &|| {
        let before = clock.now();
        RawMapping::anonymous(len, MapFlags::PRIVATE)?.unmap()?;
        anyhow::Ok(clock.now() - before)
    };
    let started = &Barrier::new(2);
    thread::scope(|scope| {
        // Gone also when `work` panics.
        let working = Arc::new(());
        let is_working = Arc::downgrade(&working);
        let probe = scope.spawn(move || {
            let mut longest = probe_once();
            started.wait();
            while is_working.strong_count() > 0 {
                thread::sleep(PAUSE);
                longest = longest.and_then(|longest| Ok(longest.max(probe_once()?)));
            }
            longest
        });
        started.wait();
        let answer = work();
        drop(working);
        let longest = probe.join().expect("the probe does not panic")?;
        Ok((answer, longest.as_secs_f64()))
    })
}
