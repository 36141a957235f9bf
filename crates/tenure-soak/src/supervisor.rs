//! The supervisor: starts the soaked process, shows its progress, and finds out how it
//! ended.

use std::io::{IsTerminal as _, Write, stderr};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use procfs::process::Process;
use tenure::Features;
use tenure_bench::{Group, text::count_text};

use super::SOAKED_PROCESS;
use super::admitting::LIMIT_BYTES;
use super::arguments::SoakArguments;
use super::board::Board;
use super::report::{Report, Setting};
use super::soaked::Config;
use super::step::Count;

/// A thread that begins no operation for so long hangs. On a busy machine it may have to wait
/// for two children of others, each of which may take 45 s.
const STALL: Duration = Duration::from_secs(120);

/// The soaked process may take so long to end after it was told to.
const END: Duration = Duration::from_secs(180);

const DEFAULT_MIB_PER_THREAD: u64 = 160;
const MIN_MIB_PER_THREAD: u64 = 128;

/// Runs and watches the soaked process, and returns the report.
pub fn soak(arguments: &SoakArguments, out: &mut impl Write) -> Result<Report> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or((2 * cpus).min(8) as u32);
    let mib = |per_thread| per_thread * u64::from(threads);
    let memory = arguments.memory.unwrap_or(mib(DEFAULT_MIB_PER_THREAD));
    let min_memory = mib(MIN_MIB_PER_THREAD);
    ensure!(
        memory >= min_memory,
        "{threads} threads need at least {min_memory} MiB (--memory)"
    );
    let (limit_bytes, group) = match arguments.unreadable_limits {
        true => (LIMIT_BYTES, Group::with_limit(LIMIT_BYTES)),
        false => {
            let limit_bytes = usize::try_from(memory)? << 20;
            (limit_bytes, limited_group(limit_bytes))
        }
    };
    let (group, why_no_limit) = match group {
        Ok(group) => (Some(group), None),
        Err(why) => (None, Some(format!("{why:#}"))),
    };
    let setting = Setting {
        seed: arguments.seed,
        minutes: arguments.minutes,
        threads: threads as usize,
        limit_bytes: group.as_ref().map(|_| limit_bytes),
        why_no_limit,
        long: arguments.long,
        unreadable_limits: arguments.unreadable_limits,
    };
    if !arguments.json {
        write!(out, "{}", setting.text())?;
        out.flush()?;
    }
    let (board, file) = Board::create().context("creating shared memory")?;
    let config = Config {
        board: file.as_raw_fd(),
        setting: setting.clone(),
        group: group.as_ref().map(|group| group.path().to_owned()),
        parent: std::process::id(),
    };
    let mut watch = Watch::start(board, &config, arguments.minutes)?;
    let status = watch.run()?;
    let oom_kills = group.as_ref().map_or(0, |group| oom_kills(group.path()));
    let failure = watch.failure(status, oom_kills);
    Ok(Report {
        seconds: watch.begun.elapsed().as_secs_f64(),
        peak_rss_bytes: watch.peak_rss_bytes,
        ..Report::new(setting, board, failure)
    })
}

fn limited_group(limit_bytes: usize) -> Result<Group> {
    let features = Features::get();
    // tenure's own purging would not keep the process below the limit in time.
    ensure!(
        features.sigbus_on_missing() && features.madv_populate.is_ok(),
        "without userfaultfd or MADV_POPULATE_WRITE the kernel cannot be offered memory"
    );
    Group::with_limit(limit_bytes)
}

struct Watch {
    board: &'static Board,
    process: Process,
    child: Child,
    duration: Duration,
    /// When the warm-up was over; before that, when the process was started.
    begun: Instant,
    /// How many operations each thread had begun, and since when.
    seen: Vec<(u64, Instant)>,
    peak_rss_bytes: u64,
    /// Why the supervisor killed the process.
    hang: Option<String>,
    bar: ProgressBar,
}

impl Watch {
    fn start(board: &'static Board, config: &Config, minutes: f64) -> Result<Self> {
        let child = Command::new(env::current_exe()?)
            .args([SOAKED_PROCESS, &serde_json::to_string(config)?])
            .spawn()
            .context("starting the soaked process")?;
        let duration = Duration::from_secs_f64(minutes * 60.0);
        Ok(Self {
            board,
            process: Process::new(child.id().cast_signed())?,
            child,
            duration,
            begun: Instant::now(),
            seen: vec![(0, Instant::now()); config.setting.threads],
            peak_rss_bytes: 0,
            hang: None,
            bar: progress_bar(duration),
        })
    }

    /// Checks the process every second until it has ended.
    fn run(&mut self) -> Result<ExitStatus> {
        /// Without a terminal a line of progress is printed every so many seconds.
        const LINE_SECONDS: u64 = 10;
        let (mut has_begun, mut told_to_end) = (false, None::<Instant>);
        let mut next_check = Instant::now();
        for second in 0.. {
            while Instant::now() < next_check {
                if let Some(status) = self.child.try_wait()? {
                    self.bar.finish_and_clear();
                    return Ok(status);
                }
                thread::sleep(Duration::from_millis(50));
            }
            next_check += Duration::from_secs(1);
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
                self.show_progress(second % LINE_SECONDS == 0);
            }
            self.kill_if_it_hangs(told_to_end);
        }
        unreachable!("the loop has no end")
    }

    fn show_progress(&self, is_line_due: bool) {
        const LEVELS: [&str; 3] = ["none", "some", "severe"];
        let board = self.board;
        let operations: u64 = board.verbs.iter().map(|count| count.load(Relaxed)).sum();
        let text = format!(
            "{} operations, {} pages checked, {} purged, pressure {}, errors {}",
            count_text(operations as f64),
            count_text(board.get(Count::PagesChecked) as f64),
            count_text(board.get(Count::PagesPurged) as f64),
            LEVELS[board.pressure_level.load(Relaxed) as usize],
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

    fn kill_if_it_hangs(&mut self, told_to_end: Option<Instant>) {
        for (number, (begun, since)) in self.seen.iter_mut().enumerate() {
            let state = &self.board.threads[number];
            let now = state.begun.load(Acquire);
            if now != *begun || state.tid.load(Acquire) == 0 {
                (*begun, *since) = (now, Instant::now());
            }
            if since.elapsed() > STALL && self.hang.is_none() {
                let last = self.board.recent(number).pop().unwrap_or_default();
                let seconds = STALL.as_secs();
                let text = format!("thread {number} has done nothing for {seconds} s: {last}");
                self.hang = Some(text);
            }
        }
        if told_to_end.is_some_and(|since| since.elapsed() > END) && self.hang.is_none() {
            self.hang = Some(format!("it did not end within {} s", END.as_secs()));
        }
        if let Some(hang) = &mut self.hang {
            hang.push_str(&kernel_stacks(self.child.id()));
            // `run` sees the process end; an error says that it has ended already.
            let _ = self.child.kill();
        }
    }

    fn failure(&self, status: ExitStatus, oom_kills: u64) -> Option<String> {
        if oom_kills > 0 {
            return Some(format!(
                "the kernel has killed {oom_kills} process(es) of the soak: out of memory"
            ));
        }
        let failure = self.hang.clone().or_else(|| self.board.failure());
        let failure = failure.or_else(|| match (status.signal(), status.success()) {
            (Some(signal), _) => Some(format!("the process was ended by signal {signal}")),
            (_, false) => Some("the process could not do its work".to_owned()),
            _ => None,
        });
        let has_begun = self.board.has_begun.load(Acquire);
        failure.or_else(|| (!has_begun).then(|| "it has not begun".to_owned()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both calls fail where the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns how many processes of the group the kernel has killed because memory was
/// unavailable.
fn oom_kills(group: &Path) -> u64 {
    let kills = |name: &str| {
        let text = fs::read_to_string(group.join(name)).ok()?;
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
    };
    let mut files = ["memory.events", "memory.oom_control"].into_iter();
    files.find_map(kills).unwrap_or(0)
}

/// Returns the kernel stack of each thread, where it may be read.
fn kernel_stacks(pid: u32) -> String {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(folder).into_iter().flatten().flatten();
    let text = tasks.map(|task| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (comm, stack) = (read("comm"), read("stack"));
        format!("\n{} {}\n{stack}", task.path().display(), comm.trim())
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
    fn progress_template_is_valid() {
        progress_bar(Duration::from_secs(1)).finish_and_clear();
    }

    #[test]
    fn oom_kills_are_read_in_both_cgroup_versions() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(oom_kills(folder.path()), 0);
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        fs::write(folder.path().join("memory.oom_control"), text).unwrap();
        assert_eq!(oom_kills(folder.path()), 3);
        fs::write(folder.path().join("memory.events"), "oom 9\noom_kill 4\n").unwrap();
        assert_eq!(oom_kills(folder.path()), 4);
    }
}
