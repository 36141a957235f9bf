//! Measures the cost of the budget of a `LockedFile` on this machine:
//! `cargo run --release --example locked_file_costs -- [FOLDER]`
//!
//! Creates, and removes, a file of 512 MiB in FOLDER (by default the current one).

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the example owns the file, and removes its name before it maps it"
)]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, madvise};
use tenure::{LockedFile, page_size};

const MIB: usize = 1 << 20;
const FILE: usize = 512 * MIB;
const CHUNK: usize = 2 * MIB;
const BUDGET: usize = 128 * MIB;
const HOT: usize = 96 * MIB;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    for (kind, write_bytes) in [("base pages", page_size()), ("large folios", 64 * MIB)] {
        let file = make_file(Path::new(&folder), write_bytes)?;
        println!("{} MiB in the page cache, {kind}:", FILE / MIB);
        evict_chunks(&file)?;
        let mut ratios = vec![];
        for _ in 0..5 {
            let without = hot_beside_cold("no budget", unsafe { LockedFile::map(&file) }?)?;
            let locked = unsafe { LockedFile::with_budget(&file, BUDGET) }?;
            ratios.push(hot_beside_cold("with a budget", locked)? / without * 100.0);
        }
        show("hot reads with a budget, % of those without", ratios);
    }
    Ok(())
}

/// Creates the file with writes of this size. Bytes of one write share large folios if
/// the file system has them.
fn make_file(folder: &Path, write_bytes: usize) -> Outcome<File> {
    let path = folder.join(format!("locked_file_costs.{}", std::process::id()));
    let mut file = File::create(&path)?;
    for _ in 0..FILE / write_bytes {
        file.write_all(&vec![1; write_bytes])?;
    }
    file.sync_all()?;
    let file = File::open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn touch(locked: &LockedFile, bytes: Range<usize>) {
    for at in bytes.step_by(page_size()) {
        assert_eq!(black_box(locked.as_slice()[at]), 1);
    }
}

fn show(what: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    let (least, most) = (figures[0], figures[figures.len() - 1]);
    let median = figures[figures.len() / 2];
    println!("  {what}: {median:.1} ({least:.1} to {most:.1})");
}

/// Measures a scan of all pages, and the eviction of one chunk after the other.
fn evict_chunks(file: &File) -> Outcome<()> {
    let locked = unsafe { LockedFile::map(file) }?;
    touch(&locked, 0..FILE);
    let (mut scans, mut evictions, mut refaults, mut faults) = (vec![], vec![], vec![], vec![]);
    for _ in 0..15 {
        let began = Instant::now();
        assert_eq!(locked.locked_bytes()?, FILE);
        scans.push(nanos(began) / (FILE / page_size()) as f64);
    }
    for at in (0..FILE).step_by(CHUNK) {
        let began = Instant::now();
        let chunk = unsafe { locked.range().as_ptr().add(at) };
        unsafe { madvise(chunk.cast(), CHUNK, Advice::LinuxDontneedLocked) }?;
        evictions.push(nanos(began) / 1e3);
        let before = minor_faults()?;
        let began = Instant::now();
        touch(&locked, at..at + CHUNK);
        refaults.push(nanos(began) / 1e3);
        faults.push(minor_faults()? - before);
    }
    show("a scan, ns for each locked page", scans);
    show("evicting 2 MiB, us", evictions);
    show("touching all of it again, us", refaults);
    show("... minor faults", faults);
    Ok(())
}

fn nanos(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e9
}

/// Returns the field `minflt` of `/proc/self/stat`.
fn minor_faults() -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let behind_name = stat.rsplit(") ").next().unwrap_or_default();
    Ok(behind_name.split(' ').nth(7).unwrap_or_default().parse()?)
}

/// Reads pages of the hot set at random in one thread, and the rest from front to back
/// at 400 MiB a second in another. Returns the hot reads per second.
fn hot_beside_cold(what: &str, locked: LockedFile) -> Outcome<f64> {
    const TIME: Duration = Duration::from_secs(2);
    touch(&locked, 0..HOT);
    let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut hot_share, mut locked_mib) = (vec![], vec![]);
    let before = evictor_seconds();
    thread::scope(|scope| -> Outcome<()> {
        scope.spawn(|| {
            let mut random = 1_usize;
            while !done.load(Relaxed) {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (random >> 20) % (HOT / page_size()) * page_size();
                assert_eq!(black_box(locked.as_slice()[at]), 1);
                reads.fetch_add(1, Relaxed);
            }
        });
        let began = Instant::now();
        for index in 0.. {
            let at = HOT + index * CHUNK % (FILE - HOT);
            touch(&locked, at..at + CHUNK);
            thread::sleep(Duration::from_millis(5));
            if began.elapsed() > TIME {
                break;
            }
            if index % 20 == 0 && began.elapsed() > TIME / 5 {
                locked_mib.push(locked.locked_bytes()? as f64 / MIB as f64);
                hot_share.push(hot_present(&locked)? * 100.0);
            }
        }
        done.store(true, Relaxed);
        Ok(())
    })?;
    let thread_share = (evictor_seconds() - before) / TIME.as_secs_f64();
    let each_second = reads.into_inner() as f64 / TIME.as_secs_f64();
    println!("  {what}: {:.2} million hot reads/s", each_second / 1e6);
    show("... locked, MiB", locked_mib);
    show("... of the hot set locked, %", hot_share);
    println!(
        "  ... the evictor thread: {:.1} % of a CPU",
        thread_share * 100.0
    );
    Ok(each_second)
}

fn hot_present(locked: &LockedFile) -> Outcome<f64> {
    use std::os::unix::fs::FileExt;
    let mut entries = vec![0; HOT / page_size() * 8];
    let first = locked.range().start() / page_size() * 8;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, first as u64)?;
    let entries = entries.as_chunks::<8>().0;
    let present = entries.iter().filter(|entry| entry[7] >> 7 == 1).count();
    Ok(present as f64 / entries.len() as f64)
}

/// Returns the CPU time of the evictor threads so far, in seconds.
fn evictor_seconds() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let nanos = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let stat = fs::read_to_string(task.join("schedstat")).ok()?;
        let nanos: f64 = stat.split(' ').next()?.parse().ok()?;
        (name.trim() == "tenure-evictor").then_some(nanos)
    });
    nanos.sum::<f64>() / 1e9
}
