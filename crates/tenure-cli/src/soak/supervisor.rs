//! The process that watches: starts the other one, tells how far it is, and knows
//! what has become of it.

use std::{
    env, fs,
    io::{IsTerminal as _, Write, stderr},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::atomic::Ordering::{Acquire, Release},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use procfs::process::Process;
use tenure::Features;

use super::{
    ARGUMENT,
    board::{Board, Count, descriptor},
    body::Order,
    report::{Report, Setting, level_text},
};
use crate::{bench::Group, cli::SoakArguments, text::count_text};

const MIB: usize = 1 << 20;

/// A thread that does nothing for so long hangs.
const STALL: Duration = Duration::from_secs(60);

/// So long everything may take to end, once it is told to.
const END: Duration = Duration::from_secs(180);

/// What the limit is for each thread, and at least.
const MIB_PER_THREAD: u64 = 160;
const LEAST_MIB_PER_THREAD: u64 = 128;

/// Runs it all, and returns what it has come to.
pub fn soak(arguments: &SoakArguments, out: &mut impl Write) -> Result<Report> {
    let threads = arguments.threads.unwrap_or_else(default_threads);
    let memory = arguments
        .memory
        .unwrap_or(MIB_PER_THREAD * u64::from(threads));
    ensure!(
        memory >= LEAST_MIB_PER_THREAD * u64::from(threads),
        "{threads} threads need at least {} MiB (--memory)",
        LEAST_MIB_PER_THREAD * u64::from(threads)
    );
    let limit_bytes = usize::try_from(memory)? * MIB;
    let (group, why_no_limit) = match limited(limit_bytes) {
        Ok(group) => (Some(group), None),
        Err(why) => (None, Some(format!("{why:#}"))),
    };
    let setting = Setting {
        seed: arguments.seed,
        minutes: arguments.minutes,
        threads,
        limit_bytes: group.as_ref().map(|_| limit_bytes),
        why_no_limit,
    };
    if !arguments.json {
        write!(out, "{}", setting.text())?;
        out.flush()?;
    }
    let (board, file) = Board::make().context("making shared memory")?;
    let order = Order {
        board: descriptor(&file),
        seed: arguments.seed,
        threads: threads as usize,
        limit_bytes: setting.limit_bytes,
        group: group.as_ref().map(|group| group.path().to_owned()),
        parent: std::process::id(),
    };
    let mut watch = Watch::start(board, &order, arguments.minutes)?;
    let ended = watch.watch()?;
    let killed = group.as_ref().map_or(0, |group| oom_kills(group.path()));
    let failure = watch.failure(ended, killed);
    Ok(Report::new(
        setting,
        board,
        watch.begun.elapsed(),
        watch.peak_rss_bytes,
        failure,
    ))
}

fn limited(limit_bytes: usize) -> Result<Group> {
    let features = Features::get();
    // What is volatile would not be taken in time.
    ensure!(
        features.sigbus_on_missing() && features.madv_populate.is_ok(),
        "without userfaultfd or MADV_POPULATE_WRITE the kernel cannot be offered anything"
    );
    Group::with_limit(limit_bytes)
}

fn default_threads() -> u32 {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    (2 * cpus).min(8) as u32
}

struct Watch {
    board: &'static Board,
    process: Process,
    child: Child,
    duration: Duration,
    /// When the run has begun; before that, when all was started.
    begun: Instant,
    /// How many operations each thread had begun, and since when.
    seen: Vec<(u64, Instant)>,
    peak_rss_bytes: u64,
    /// What had to be ended.
    hangs: Option<String>,
    bar: ProgressBar,
}

impl Watch {
    fn start(board: &'static Board, order: &Order, minutes: f64) -> Result<Self> {
        let child = Command::new(env::current_exe()?)
            .args([ARGUMENT, &serde_json::to_string(order)?])
            .spawn()
            .context("starting the process that is soaked")?;
        let duration = Duration::from_secs_f64(minutes * 60.0);
        Ok(Self {
            board,
            process: Process::new(child.id().cast_signed())?,
            child,
            duration,
            begun: Instant::now(),
            seen: vec![(0, Instant::now()); order.threads],
            peak_rss_bytes: 0,
            hangs: None,
            bar: progress_bar(duration),
        })
    }

    /// Watches until the process has ended.
    fn watch(&mut self) -> Result<ExitStatus> {
        /// Without a terminal: a line every so many looks.
        const LINE: u64 = 10;
        let (mut has_begun, mut told_to_end) = (false, None::<Instant>);
        let mut next_look = Instant::now();
        for look in 0.. {
            // It ends soon after it was told to, or because something is wrong.
            while Instant::now() < next_look {
                if let Some(status) = self.child.try_wait()? {
                    self.bar.finish_and_clear();
                    return Ok(status);
                }
                thread::sleep(Duration::from_millis(50));
            }
            next_look += Duration::from_secs(1);
            if !has_begun && self.board.has_begun.load(Acquire) {
                (has_begun, self.begun) = (true, Instant::now());
            }
            if has_begun && self.begun.elapsed() >= self.duration {
                self.board.stop.store(true, Release);
            }
            if told_to_end.is_none() && self.board.stop.load(Acquire) {
                told_to_end = Some(Instant::now());
            }
            if let Ok(status) = self.process.status() {
                let peak = status.vmhwm.unwrap_or(0) * 1024;
                self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
            }
            if has_begun {
                self.tell(look % LINE == 0);
            }
            self.look_for_stalls(told_to_end);
        }
        unreachable!("there is always another look")
    }

    fn tell(&self, is_line_due: bool) {
        let board = self.board;
        let text = format!(
            "{} operations, {} pages checked, {} lost, pressure {}, errors {}",
            count_text(board.operations() as f64),
            count_text(board.get(Count::PagesChecked) as f64),
            count_text(board.get(Count::PagesLost) as f64),
            level_text(board.get(Count::PressureLevel)),
            u32::from(board.failure().is_some()),
        );
        let seconds = self.begun.elapsed().as_secs();
        if stderr().is_terminal() {
            self.bar.set_position(seconds.min(self.duration.as_secs()));
            self.bar.set_message(text);
        } else if is_line_due {
            eprintln!("{seconds:5} s: {text}");
        }
    }

    fn look_for_stalls(&mut self, told_to_end: Option<Instant>) {
        for (number, (begun, since)) in self.seen.iter_mut().enumerate() {
            let place = &self.board.places[number];
            let now = place.begun.load(Acquire);
            if now != *begun || place.thread.load(Acquire) == 0 {
                (*begun, *since) = (now, Instant::now());
            }
            if since.elapsed() > STALL && self.hangs.is_none() {
                let last = self.board.last(number).pop().unwrap_or_default();
                self.hangs = Some(format!(
                    "thread {number} has done nothing for {} s: {last}",
                    STALL.as_secs()
                ));
            }
        }
        if told_to_end.is_some_and(|since| since.elapsed() > END) && self.hangs.is_none() {
            self.hangs = Some(format!("it did not end within {} s", END.as_secs()));
        }
        if let Some(hangs) = &mut self.hangs {
            hangs.push_str(&where_threads_are(self.child.id()));
            // What it does is known; `watch` sees it end.
            let _ = self.child.kill();
        }
    }

    fn failure(&self, ended: ExitStatus, oom_kills: u64) -> Option<String> {
        if oom_kills > 0 {
            return Some(format!(
                "the kernel has killed {oom_kills} process(es) of the soak: out of memory"
            ));
        }
        if let Some(hangs) = &self.hangs {
            return Some(hangs.clone());
        }
        if let Some(failure) = self.board.failure() {
            return Some(failure);
        }
        match (ended.signal(), ended.success()) {
            (Some(signal), _) => Some(format!("the process was ended by signal {signal}")),
            (_, false) => Some("the process could not do its work".to_owned()),
            _ if !self.board.has_begun.load(Acquire) => Some("it has not begun".to_owned()),
            _ => None,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Nothing when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many processes of the group the kernel has killed for want of memory.
fn oom_kills(group: &Path) -> u64 {
    ["memory.events", "memory.oom_control"]
        .into_iter()
        .filter_map(|name| fs::read_to_string(group.join(name)).ok())
        .find_map(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
        })
        .unwrap_or(0)
}

/// What each thread waits for in the kernel, as far as that is told.
fn where_threads_are(pid: u32) -> String {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(folder).into_iter().flatten().flatten();
    let text = tasks.map(|task| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!(
            "\n{} {}\n{}",
            task.path().display(),
            read("comm").trim(),
            read("stack")
        )
    });
    text.collect()
}

fn progress_bar(duration: Duration) -> ProgressBar {
    let target = match stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(duration.as_secs().max(1)), target);
    let style = ProgressStyle::with_template("[{bar:20}] {pos}/{len} s: {msg}")
        .expect("the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_template_is_valid() {
        progress_bar(Duration::from_secs(1)).finish_and_clear();
    }

    #[test]
    fn kills_are_counted_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(oom_kills(folder.path()), 0);
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        fs::write(folder.path().join("memory.oom_control"), text).unwrap();
        assert_eq!(oom_kills(folder.path()), 3);
        fs::write(folder.path().join("memory.events"), "oom 9\noom_kill 4\n").unwrap();
        assert_eq!(oom_kills(folder.path()), 4);
    }
}
