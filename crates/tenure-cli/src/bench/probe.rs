//! A second thread that sees how long it waits for its own memory mappings.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use rustix::mm::MapFlags;

use super::{clock::Clock, raw::RawMapping};

/// The pause between two probes: rare enough to leave the CPU to the work.
const PAUSE: Duration = Duration::from_micros(200);

/// Does `work` while another thread maps and unmaps `len` bytes over and over,
/// and returns the answer and the longest time, in seconds, that the pair took.
pub fn longest_wait<T>(
    clock: &dyn Clock,
    len: usize,
    work: impl FnOnce() -> T,
) -> Result<(T, f64)> {
    let stop = AtomicBool::new(false);
    let started = Barrier::new(2);
    thread::scope(|scope| {
        // Tells the probe to end also when `work` panics.
        let stopper = SetOnDrop(&stop);
        let probe = scope.spawn(|| {
            let mut longest = probe_once(clock, len);
            started.wait();
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                longest = longest.and_then(|longest| Ok(longest.max(probe_once(clock, len)?)));
            }
            longest
        });
        started.wait();
        let answer = work();
        drop(stopper);
        let longest = probe.join().expect("the probe does not panic")?;
        Ok((answer, longest.as_secs_f64()))
    })
}

fn probe_once(clock: &dyn Clock, len: usize) -> Result<Duration> {
    let before = clock.now();
    RawMapping::anonymous(len, MapFlags::PRIVATE)?.unmap()?;
    Ok(clock.now() - before)
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::clock::{MonotonicClock, mock::MockClock};

    #[test]
    fn the_answer_comes_back() {
        let (answer, _) = longest_wait(&MockClock::default(), 65536, || 42).unwrap();
        assert_eq!(answer, 42);
    }

    #[test]
    fn a_probe_takes_some_time() {
        let (_, longest) = longest_wait(&MonotonicClock::start(), 65536, || ()).unwrap();
        assert!(longest > 0.0);
    }
}
