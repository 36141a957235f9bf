//! The process that is soaked.

use std::{
    fs, io,
    path::PathBuf,
    process,
    sync::{
        OnceLock,
        atomic::Ordering::{Acquire, Release},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tenure::{VolatileArena, pressure, stats};

use super::{
    MOST_THREADS,
    board::{Board, Count},
    model::Wrong,
    pressure::{interrupt, make_waves, take_pages},
    ready::Cache,
    worker::{Shared, Worker},
};

/// What the process is told.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    pub board: i32,
    pub seed: u64,
    pub threads: usize,
    /// The limit of the memory cgroup that it is in.
    pub limit_bytes: Option<usize>,
    pub group: Option<PathBuf>,
    /// Whose child it is: it ends with it.
    pub parent: u32,
}

/// Threads, allocators and watchers settle first.
const WARM_UP_STEPS: u64 = 60;

/// Does what it is told, until the board says to stop.
pub fn run(order: &Order) -> Result<()> {
    end_with(order.parent)?;
    if let Some(group) = &order.group {
        fs::write(group.join("cgroup.procs"), process::id().to_string())
            .context("entering the memory cgroup")?;
    }
    let board = Board::open(order.board).context("the board")?;
    let threads = order.threads.clamp(1, MOST_THREADS as usize);
    on_signals(board)?;
    super::model::prepare();
    tenure::prepare();
    // Held to the end: so that its thread and descriptors are there from now on.
    let _watched = pressure::subscribe(|_| ());
    round(board, order, threads, WARM_UP_STEPS, !order.seed)?;
    settle(board)?;
    if board.stop.load(Acquire) {
        return Ok(());
    }
    let before = Held::now()?;
    board.set(Count::MappingsBefore, before.mappings);
    board.set(Count::DescriptorsBefore, before.descriptors.len() as u64);
    board.clear_counts();
    board.has_begun.store(true, Release);
    round(board, order, threads, u64::MAX, order.seed)?;
    settle(board)?;
    let after = Held::now()?;
    board.set(Count::MappingsAfter, after.mappings);
    board.set(Count::DescriptorsAfter, after.descriptors.len() as u64);
    if let Err(wrong) = after.compare(&before) {
        board.fail("the end", &wrong);
    }
    Ok(())
}

/// Everybody works, until it is time to stop or all have done so much.
fn round(board: &'static Board, order: &Order, threads: usize, most: u64, seed: u64) -> Result<()> {
    /// Of the limit, for all threads: what they have at a time that cannot be taken.
    const FIRM_PART: usize = 5;
    /// What waits to be offered, what waits to be freed, and the waves.
    const PART: usize = 10;
    /// So much is never more than a machine has without a limit.
    const BYTES_PER_THREAD: usize = 160 << 20;
    let bytes = order.limit_bytes.unwrap_or(threads * BYTES_PER_THREAD);
    let shared = Shared {
        board,
        seed,
        arena: VolatileArena::new(64 << 20)?,
        cache: Cache::new(),
        firm_pages: bytes / FIRM_PART / threads / tenure::page_size(),
        waiting_bytes: order.limit_bytes.map(|limit| (limit / PART) as u64),
    };
    thread::scope(|scope| {
        let start = |number| {
            let shared = &shared;
            move || Worker::new(shared, number).run(most)
        };
        let workers: Vec<_> = (0..threads)
            .map(|number| scope.spawn(start(number)))
            .collect();
        if most == u64::MAX {
            if order.limit_bytes.is_some() {
                scope.spawn(move || make_waves(board, bytes / PART, seed));
            }
            let is_free = order.limit_bytes.is_none();
            scope.spawn(move || take_pages(board, threads, is_free, seed));
            scope.spawn(move || interrupt(board, threads, seed));
        }
        for (number, worker) in workers.into_iter().enumerate() {
            if let Err(panic) = worker.join() {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied());
                let wrong = Wrong::new("a panic", "none", text.unwrap_or("without a text"));
                board.fail(&format!("thread {number}"), &wrong);
            }
        }
        // The others, if the workers have ended by themselves.
        if most == u64::MAX {
            board.stop.store(true, Release);
        }
    });
    Ok(())
}

/// Waits until all that was released is free.
fn settle(board: &Board) -> Result<()> {
    tenure::set_hand_over_delay(Duration::from_millis(100));
    if let Err(error) = tenure::drain(Some(Duration::from_secs(60))) {
        board.fail("the end", &Wrong::new("drain", "nothing pending", error));
    }
    let pending_bytes = stats().pending_release_bytes;
    if pending_bytes > 0 {
        board.fail(
            "the end",
            &Wrong::new("pending after drain", 0, pending_bytes),
        );
    }
    board.set(Count::PendingBytes, pending_bytes);
    // Threads that have nothing to do go after a moment.
    thread::sleep(Duration::from_millis(1500));
    Ok(())
}

/// What the process has.
struct Held {
    mappings: u64,
    /// What the descriptors are of.
    descriptors: Vec<String>,
}

impl Held {
    /// Heaps of the allocator come and go; what an operation leaves behind is there
    /// thousands of times.
    const SPARE_MAPPINGS: u64 = 64;
    /// The same of what is opened when it is first needed.
    const SPARE_DESCRIPTORS: usize = 0;

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

    fn compare(&self, before: &Self) -> Result<(), Wrong> {
        if self.mappings > before.mappings + Self::SPARE_MAPPINGS {
            let expected = format!("{}, and a few of the allocator", before.mappings);
            return Err(Wrong::new("mappings left behind", expected, self.mappings));
        }
        if self.descriptors.len() > before.descriptors.len() + Self::SPARE_DESCRIPTORS {
            let [expected, found] = [before, self].map(|held| held.descriptors.join(", "));
            return Err(Wrong::new("descriptors left behind", expected, found));
        }
        Ok(())
    }
}

fn end_with(parent: u32) -> Result<()> {
    // SAFETY: a setting of this process, by values.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    anyhow::ensure!(
        std::os::unix::process::parent_id() == parent,
        "nobody is watching"
    );
    Ok(())
}

static BOARD: OnceLock<&'static Board> = OnceLock::new();

extern "C" fn count(_: i32) {
    if let Some(board) = BOARD.get() {
        board.add(Count::Signals, 1);
    }
}

/// Has signals interrupt calls (without SA_RESTART), and do nothing else.
fn on_signals(board: &'static Board) -> Result<()> {
    let _ = BOARD.set(board);
    for signal in [libc::SIGUSR1, libc::SIGPROF] {
        // SAFETY: zeros are a mask of no signals, and no flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count as *const () as usize;
        // SAFETY: the handler adds to an atomic number.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error()).context("sigaction");
        }
    }
    Ok(())
}
