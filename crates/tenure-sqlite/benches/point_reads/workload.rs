//! The database, and the operations on it.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::sqlite::{Connection, Sqlite};

const ROW_BYTES: usize = 1000;

/// Operations between two looks at the clock.
const BATCH: usize = 100;

/// How many operations are drawn ahead; they repeat then.
const DRAWN: usize = 1 << 20;

fn load(arguments: &Arguments) -> Sqlite {
    Sqlite::load(arguments.get("library").unwrap_or("libsqlite3.so.0"))
}

fn open<'a>(sqlite: &'a Sqlite, arguments: &Arguments, file: &Path) -> Connection<'a> {
    let db = sqlite.open(file);
    if let Some(key) = arguments.get("key") {
        db.run(&format!("pragma key='{key}'"));
    }
    db.run("pragma synchronous=off");
    db
}

fn rows(arguments: &Arguments) -> usize {
    arguments.bytes() / (ROW_BYTES + 365)
}

pub fn make(arguments: &Arguments, file: &Path) {
    let sqlite = load(arguments);
    let db = open(&sqlite, arguments, file);
    db.run("pragma journal_mode=wal");
    db.run("create table t(k integer primary key, n, v)");
    db.run(&format!(
        "with recursive i(k) as (select 0 union all select k + 1 from i limit {}) \
         insert into t select k, 0, randomblob({ROW_BYTES}) from i",
        rows(arguments)
    ));
    db.run("pragma wal_checkpoint(truncate)");
    let bytes = std::fs::metadata(file).unwrap().len();
    eprintln!("{} rows, {} MiB", rows(arguments), bytes >> 20);
}

/// Draws keys by Zipf's law (exponent 1), scattered over the table.
fn draw(rows: usize) -> Vec<i64> {
    let mut sums = Vec::with_capacity(rows);
    let mut sum = 0.0;
    for rank in 0..rows {
        sum += 1.0 / (rank + 1) as f64;
        sums.push(sum);
    }
    let mut random = fastrand::Rng::with_seed(7);
    let key = |_| {
        let drawn = random.f64() * sum;
        let rank = sums.partition_point(|&before| before < drawn);
        (rank * 2_654_435_761 % rows) as i64
    };
    (0..DRAWN).map(key).collect()
}

/// Runs the operations in a child, and prints operations a second, CPU time in microseconds
/// for each, and the largest anonymous memory in MiB.
pub fn run(arguments: &Arguments, pragma: &str, is_tenure: bool) {
    let sqlite = load(arguments);
    if is_tenure {
        unsafe { tenure_sqlite::install_with(sqlite.config) }.unwrap();
    }
    let keys = draw(rows(arguments));
    let mut hog = None;
    if let Some(tasks) = arguments.get("tasks") {
        std::fs::write(tasks, "0").unwrap();
        hog = Some(take(arguments.taken()));
    }
    let db = open(
        &sqlite,
        arguments,
        Path::new(arguments.get("file").unwrap()),
    );
    db.run(pragma);
    let mut read = db.prepare("select v from t where k = ?");
    let mut update = db.prepare("update t set n = n + 1 where k = ?");
    let updates = arguments.updates();
    let mut random = fastrand::Rng::with_seed(3);
    let mut keys = keys.iter().cycle();
    let mut run_for = |time: Duration| {
        let (begun, cpu) = (Instant::now(), cpu_time());
        let mut count = 0;
        while begun.elapsed() < time {
            for _ in 0..BATCH {
                let key = keys.next().copied();
                match random.usize(0..100) < updates {
                    true => update.run(key),
                    false => read.run(key),
                };
            }
            count += BATCH;
        }
        let count = count as f64;
        let micros = (cpu_time() - cpu).as_secs_f64() * 1e6 / count;
        (count / begun.elapsed().as_secs_f64(), micros)
    };
    let time = Duration::from_millis(arguments.millis());
    run_for(2 * time);
    let (rate, micros) = run_for(time);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: f64 = anonymous
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap();
    println!("{rate} {micros} {}", kib / 1024.0);
    drop(hog);
}

/// The CPU time of the process, of its other threads as well.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    assert_eq!(
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) },
        0
    );
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A process that takes memory in the same cgroup, in the middle of the first half.
struct Hog(libc::pid_t);

fn take(bytes: usize) -> Hog {
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        std::thread::sleep(Duration::from_secs(1));
        let memory = vec![1_u8; bytes];
        loop {
            std::hint::black_box(&memory);
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    Hog(pid)
}

impl Drop for Hog {
    fn drop(&mut self) {
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
