//! The soaked process.

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;
use std::{fs, io, mem, process, ptr, thread};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tenure::pool::{self, PoolOptions, configure};
use tenure::{VolatileArena, pressure, stats};

use super::MAX_THREADS;
use super::admission::check_balanced;
use super::admitting;
use super::board::Board;
use super::handlers;
use super::model::{self, Checked, mismatch};
use super::pressure::{interrupt, make_waves, reclaim_pages};
use super::ready::Cache;
use super::report::Setting;
use super::step::Count;
use super::worker::{Shared, Worker};

/// The settings that the supervisor passes to the soaked process.
#[derive(Debug, Deserialize, Serialize)]
pub struct Config {
    pub setting: Setting,
    /// The board's descriptor.
    pub board: i32,
    pub group: Option<PathBuf>,
    /// The supervisor, with which this process ends.
    pub parent: u32,
}

/// After so many steps of each thread the allocator and tenure's threads have settled.
const WARM_UP_STEPS: u64 = 60;

/// Warms up, and soaks until the board says to stop.
pub fn run(config: &Config) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    ensure!(parent_id() == config.parent, "the supervisor has ended");
    if let Some(group) = &config.group {
        fs::write(group.join("cgroup.procs"), process::id().to_string())
            .context("entering the memory cgroup")?;
    }
    let board = Board::open(config.board).context("opening the board")?;
    let setting = &config.setting;
    handle_signals(board)?;
    model::prepare();
    if setting.unreadable_limits {
        admitting::refuse_own_descriptor_tables()?;
    }
    tenure::prepare();
    handlers::register_late();
    // Held to the end, so that its thread and descriptors exist from here on.
    let _subscription = pressure::subscribe(|_| ());
    round(board, setting, Some(WARM_UP_STEPS), !setting.seed)?;
    board.check("the end", settle(board));
    if board.stop.load(Acquire) {
        return Ok(());
    }
    let before = Held::now()?;
    board.clear_counts();
    board.set(Count::MappingsBefore, before.mappings);
    board.set(Count::DescriptorsBefore, before.descriptors.len() as u64);
    let pool_before = pool::stats();
    board.has_begun.store(true, Release);
    round(board, setting, None, setting.seed)?;
    board.check("the end", settle(board));
    board.check("the end", check_balanced());
    let pool = pool::stats();
    let recycled_bytes = pool.recycled_bytes - pool_before.recycled_bytes;
    board.set(Count::BytesRecycled, recycled_bytes);
    let given_bytes = pool.given_bytes - pool_before.given_bytes;
    board.set(Count::BytesFromPool, given_bytes);
    let after = Held::now()?;
    board.set(Count::MappingsAfter, after.mappings);
    board.set(Count::DescriptorsAfter, after.descriptors.len() as u64);
    board.check("the end", after.compare(&before));
    Ok(())
}

/// Has all threads work, for so many steps in the warm-up, else until it is time to stop.
fn round(
    board: &'static Board,
    setting: &Setting,
    warm_up_steps: Option<u64>,
    seed: u64,
) -> Result<()> {
    /// The part of the limit that all threads together hold unreclaimable.
    const UNRECLAIMABLE_PART: usize = 5;
    /// The part of the limit that may be marked but not offered; may be pending; and is
    /// filled by a wave of pressure.
    const PART: usize = 10;
    /// Stands in for the limit where there is none.
    const BYTES_PER_THREAD: usize = 160 << 20;
    let max_steps = warm_up_steps.unwrap_or(u64::MAX);
    if setting.unreadable_limits {
        admitting::round(board, setting, max_steps, seed);
        return Ok(());
    }
    let threads = setting.threads.clamp(1, MAX_THREADS);
    let bytes = setting.limit_bytes.unwrap_or(threads * BYTES_PER_THREAD);
    let shared = Shared {
        board,
        seed,
        arena: VolatileArena::new(64 << 20)?,
        cache: Cache::new(),
        scale: setting.scale(warm_up_steps.is_some()),
        max_unreclaimable_pages: bytes / UNRECLAIMABLE_PART / threads / tenure::page_size(),
        max_pending_bytes: setting.limit_bytes.map(|limit| (limit / PART) as u64),
    };
    handlers::set_up(board, seed, Some(&shared.arena));
    thread::scope(|scope| {
        let shared = &shared;
        let start = |number| scope.spawn(move || Worker::new(shared, number).run(max_steps));
        let workers: Vec<_> = (0..threads).map(start).collect();
        if warm_up_steps.is_none() {
            let is_limited = setting.limit_bytes.is_some();
            if is_limited {
                scope.spawn(move || make_waves(board, bytes / PART, seed));
            }
            scope.spawn(move || reclaim_pages(board, threads, !is_limited, seed));
            scope.spawn(move || interrupt(board, threads, seed));
        }
        for (number, worker) in workers.into_iter().enumerate() {
            if let Err(panic) = worker.join() {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied());
                let panic = mismatch("a panic", "none", text.unwrap_or("without a text"));
                board.check(&format!("thread {number}"), panic);
            }
        }
        if warm_up_steps.is_none() {
            // Ends the other three threads.
            board.stop.store(true, Release);
        }
    });
    handlers::set_up(board, seed, None);
    Ok(())
}

/// Waits until all released memory is freed and idle threads have ended.
fn settle(board: &Board) -> Checked {
    tenure::volatile::set_offer_delay(Duration::from_millis(100));
    let turned_off = configure(&PoolOptions::new());
    turned_off.or_else(|error| mismatch("pool::configure", "a pool that is off", error))?;
    let drained = tenure::drain(Some(Duration::from_secs(60)));
    drained.or_else(|error| mismatch("drain", "nothing pending", error))?;
    let pending_bytes = stats().pending_release_bytes;
    board.set(Count::PendingBytes, pending_bytes);
    if pending_bytes > 0 {
        return mismatch("pending bytes after drain", 0, pending_bytes);
    }
    thread::sleep(Duration::from_millis(1500));
    Ok(())
}

/// The mappings and descriptors of the process.
struct Held {
    mappings: u64,
    descriptors: Vec<String>,
}

impl Held {
    /// How many mappings the allocator may add; an operation that leaks one leaks
    /// thousands.
    const SPARE_MAPPINGS: u64 = 64;

    /// How many descriptors tenure keeps at most; it opens those again that were closed
    /// before the count.
    const SPARE_DESCRIPTORS: usize = 8;

    fn now() -> Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let links = fs::read_dir("/proc/self/fd")?.flatten();
        let name = |link: fs::DirEntry| match fs::read_link(link.path()) {
            Ok(target) => target.display().to_string(),
            Err(_) => "the folder itself".to_owned(),
        };
        Ok(Self {
            mappings: maps.lines().count() as u64,
            descriptors: links.map(name).collect(),
        })
    }

    fn compare(&self, before: &Self) -> Checked {
        if self.mappings > before.mappings + Self::SPARE_MAPPINGS {
            let expected = format!("{}, and a few of the allocator", before.mappings);
            return mismatch("leaked mappings", expected, self.mappings);
        }
        if self.descriptors.len() > before.descriptors.len() + Self::SPARE_DESCRIPTORS {
            let [expected, found] = [before, self].map(|held| held.descriptors.join(", "));
            return mismatch("leaked descriptors", expected, found);
        }
        Ok(())
    }
}

static BOARD: OnceLock<&'static Board> = OnceLock::new();

extern "C" fn count_signal(_: i32) {
    if let Some(board) = BOARD.get() {
        board.add(Count::Signals, 1);
    }
}

/// Installs handlers without SA_RESTART, so that signals interrupt calls.
fn handle_signals(board: &'static Board) -> Result<()> {
    let _ = BOARD.set(board);
    for signal in [libc::SIGUSR1, libc::SIGPROF] {
        // SAFETY: zeros are an empty signal mask and no flags.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = count_signal as *const () as usize;
        // SAFETY: the handler is async-signal-safe: it only adds to an atomic.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error()).context("sigaction");
        }
    }
    Ok(())
}
