//! Threads that measure how long they wait for calls of their own.

use std::sync::{Arc, Barrier};
use std::{thread, time::Duration};

use anyhow::Result;
use rustix::mm::MapFlags;

use super::{clock::Clock, memory::RawMapping};

/// The pause between two probes: rare enough to leave the CPU to the work.
const PAUSE: Duration = Duration::from_micros(200);

/// A call that a thread repeats; it returns how long the call took.
pub type Probe = Box<dyn FnMut(&dyn Clock) -> Result<Duration> + Send>;

/// Makes a probe that maps and unmaps `len` bytes.
pub fn mmap(len: usize) -> Probe {
    of(move || RawMapping::anonymous(len, MapFlags::PRIVATE)?.unmap())
}

/// Makes a probe of `call`.
pub fn of(mut call: impl FnMut() -> Result<()> + Send + 'static) -> Probe {
    Box::new(move |clock| timed(clock, &mut call))
}

/// Makes a probe of `call`, which is given what `prepare` has made; only `call` is timed.
pub fn prepared<T>(
    mut prepare: impl FnMut() -> Result<T> + Send + 'static,
    mut call: impl FnMut(T) -> Result<()> + Send + 'static,
) -> Probe {
    Box::new(move |clock| {
        let made = prepare()?;
        timed(clock, || call(made))
    })
}

fn timed(clock: &dyn Clock, call: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let before = clock.now();
    call()?;
    Ok(clock.now() - before)
}

/// Does `work` while another thread maps and unmaps `len` bytes over and over,
/// and returns the answer and the longest time, in seconds, that the pair took.
pub fn longest_wait<T>(
    clock: &dyn Clock,
    len: usize,
    work: impl FnOnce() -> T,
) -> Result<(T, f64)> {
    let (answer, waits) = longest_waits(clock, &mut [mmap(len)], work)?;
    Ok((answer, waits[0]))
}

/// Does `work` while each probe runs over and over in a thread of its own, and returns
/// the answer and the longest time, in seconds, that each probe took.
pub fn longest_waits<T>(
    clock: &dyn Clock,
    probes: &mut [Probe],
    work: impl FnOnce() -> T,
) -> Result<(T, Vec<f64>)> {
    let started = &Barrier::new(probes.len() + 1);
    thread::scope(|scope| {
        // Gone also when `work` panics.
        let working = Arc::new(());
        let spawn = |probe| {
            let is_working = Arc::downgrade(&working);
            scope.spawn(move || repeat(probe, clock, started, || is_working.strong_count() > 0))
        };
        let threads: Vec<_> = probes.iter_mut().map(spawn).collect();
        started.wait();
        let answer = work();
        drop(working);
        let threads = threads.into_iter();
        let longest = threads.map(|thread| thread.join().expect("the probe does not panic"));
        let seconds = longest.map(|longest| Ok(longest?.as_secs_f64()));
        Ok((answer, seconds.collect::<Result<_>>()?))
    })
}

/// Runs the probe once before `started`, then while `is_working`, and returns the longest
/// time that it took.
fn repeat(
    probe: &mut Probe,
    clock: &dyn Clock,
    started: &Barrier,
    is_working: impl Fn() -> bool,
) -> Result<Duration> {
    let mut longest = probe(clock);
    started.wait();
    while is_working() {
        thread::sleep(PAUSE);
        longest = longest.and_then(|longest| Ok(longest.max(probe(clock)?)));
    }
    longest
}
