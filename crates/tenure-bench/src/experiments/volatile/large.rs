//! Large ranges: how long a call takes for the whole of one, and how long other threads
//! wait meanwhile.

use std::thread;
use std::time::Duration;

use rustix::mm::Advice;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::TIME;
use super::region::{
    self, Advised, Contents, DONT_NEED, FREE, RawRange, Region, WholeRange, advised,
};
use crate::machine::clock::Clock;
use crate::machine::probe::Probe;
use crate::measure::prelude::*;

const GIB: usize = 1 << 30;
/// The length that the other thread maps and unmaps.
const PROBE_LEN: usize = 64 << 10;
/// The byte that fills every range.
const OLD: u8 = 7;
const MMAP: &str = "another thread's mmap waits at most";
/// The figures of the probes, in their order.
const WAITS: [&str; 3] = [MMAP, "marking a page waits at most", "fork waits at most"];

/// Makes a case for each call.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let wanted = settings.sizes.pick(&[GIB / 8, 8 * GIB, 8 * GIB]);
    let fitted = settings.headroom.fit(wanted, 2, page_size())?;
    notes.extend(fitted.note);
    notes.push("The forks do not copy the large range (MADV_DONTFORK).".to_owned());
    let len = fitted.len;
    let table = format!(
        "{} in base pages, beside threads that map {}, mark a page, and fork",
        bytes_text(len as f64),
        bytes_text(PROBE_LEN as f64)
    );
    let case = |name, ways| {
        let case = Case::new(name, ways).in_table(&table).comparing(MMAP);
        match settings.sizes {
            // The call is so short that a probe may miss it: there are several rounds.
            Sizes::Quick => case,
            _ => case.long(),
        }
    };
    let older = |name, advice, is_marked, call: Call<Advised>| {
        way(name, is_marked, move || advised(advice)(len), call).baseline()
    };
    let range = move || Ok(WholeRange::new(RawMapping::base_pages(len)?));
    let tenure = |is_marked, call: Call<WholeRange>| way("tenure", is_marked, range, call).tenure();
    let populate = |memory: &mut Advised| memory.settle().map(|()| None);
    let purge = |range: &mut WholeRange| range.purge().map(|()| None);
    Ok(vec![
        case(
            "mark and offer",
            vec![older("MADV_FREE", FREE, false, mark), tenure(false, mark)],
        ),
        case(
            "unmark",
            vec![
                older("MADV_POPULATE_WRITE", FREE, true, populate),
                tenure(true, |range| range.unmark().map(Some)),
            ],
        ),
        case(
            "purge",
            vec![
                older("MADV_DONTNEED", DONT_NEED, false, mark),
                tenure(true, purge),
            ],
        ),
    ])
}

/// The measured call. It returns the contents, as far as they are known, if it unmarks them.
pub type Call<R> = fn(&mut R) -> Result<Option<Contents>>;

pub fn mark<R: Region>(region: &mut R) -> Result<Option<Contents>> {
    region.mark().map(|()| None)
}

fn way<R: Region + 'static>(
    name: &'static str,
    is_marked: bool,
    make: impl Fn() -> Result<R> + 'static,
    call: Call<R>,
) -> Way {
    Way::new(
        name,
        move || {
            let mut region = make()?;
            let bytes = region.bytes()?;
            touch::bring_in(bytes)?;
            bytes.fill(OLD);
            dont_fork(bytes)?;
            if is_marked {
                region.mark()?;
            }
            Ok((region, probes()?))
        },
        move |(mut region, mut probes), recorder| {
            let clock = recorder.clock();
            let alone = fork(clock)?.as_secs_f64();
            let timed = || recorder.time(TIME, || call(&mut region));
            let (contents, longest) = probe::longest_waits(clock, &mut probes, timed)?;
            for (name, longest) in WAITS.into_iter().zip(longest) {
                recorder.record(name, Unit::Seconds, longest);
            }
            recorder.record("fork alone", Unit::Seconds, alone);
            Ok((region, contents?))
        },
        |(mut region, contents), _| {
            let contents = contents.map_or_else(|| region.unmark(), Ok)?;
            region::check(&mut region, &contents, OLD)
        },
    )
}

/// Keeps the range from the children, so that a fork does not copy its page tables.
fn dont_fork(bytes: &mut [u8]) -> Result<()> {
    let advice = Advice::LinuxDontFork;
    // SAFETY: the bytes are borrowed mutably, and this changes no contents.
    unsafe { rustix::mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), advice) }
        .context("MADV_DONTFORK")
}

/// Makes a probe for each of [`WAITS`].
fn probes() -> Result<Vec<Probe>> {
    let (mut pages, memory) = RawRange::pages(1)?;
    let mark = move || {
        let _memory = &memory;
        pages[0].mark()?;
        // Not purged: it has no contents.
        pages[0].unmark().map(drop)
    };
    let rare_fork: Probe = Box::new(|clock| {
        // A fork keeps other threads from mapping memory, too.
        thread::sleep(Duration::from_millis(5));
        fork(clock)
    });
    Ok(vec![probe::mmap(PROBE_LEN), probe::of(mark), rare_fork])
}

/// Forks a child that ends at once, and returns how long `fork` took.
fn fork(clock: &dyn Clock) -> Result<Duration> {
    let before = clock.now();
    // SAFETY: the child makes one system call, which ends it.
    let pid = match unsafe { libc::fork() } {
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        pid => pid,
    };
    let took = clock.now() - before;
    ensure!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).context("waiting for the child")?;
    Ok(took)
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/large.rs"]
mod tests;
