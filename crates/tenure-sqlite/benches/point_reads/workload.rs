//! The database, and the operations on it.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::sqlite::{Connection, Sqlite};

const ROW_BYTES: usize = 1000;

/// How many operations are drawn ahead; they repeat then.
const DRAWN: usize = 1 << 21;

fn load(arguments: &Arguments) -> Sqlite {
    Sqlite::load(arguments.get("library").unwrap_or("libsqlite3.so.0"))
}

fn open<'a>(sqlite: &'a Sqlite, arguments: &Arguments, file: &Path) -> Connection<'a> {
    let db = sqlite.open(file);
    if let Some(key) = arguments.get("key") {
        db.run(&format!("pragma key='{key}'"));
        // The default since SQLCipher 4.
        db.run("pragma cipher_page_size=4096");
    }
    db.run("pragma synchronous=off");
    db
}

fn rows(arguments: &Arguments) -> usize {
    // Four to a page of 4 KiB.
    arguments.bytes() / (ROW_BYTES + 27)
}

pub fn make(arguments: &Arguments, file: &Path) {
    let sqlite = load(arguments);
    let db = open(&sqlite, arguments, file);
    // Without a journal the database is on the disk once, not twice.
    db.run("pragma journal_mode=off");
    db.run("create table t(k integer primary key, n, v)");
    db.run(&format!(
        "with recursive i(k) as (select 0 union all select k + 1 from i limit {}) \
         insert into t select k, 0, randomblob({ROW_BYTES}) from i",
        rows(arguments)
    ));
    db.run("pragma journal_mode=wal");
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

/// Has the kernel forget the pages of the file and read them again, for the cgroup of this
/// process, whose memory is theirs then.
fn read_anew(file: &Path) {
    let file = File::open(file).unwrap();
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(code, 0);
    let mut part = vec![0; 1 << 20];
    while (&file).read(&mut part).unwrap() > 0 {}
}

/// Runs the operations in a child, and prints operations a second, CPU time in microseconds
/// for each, the anonymous memory in MiB, and whether the process beside it lives.
pub fn run(arguments: &Arguments, pragma: &str, is_tenure: bool) {
    let sqlite = load(arguments);
    if is_tenure {
        unsafe { tenure_sqlite::install_with(sqlite.config) }.unwrap();
    }
    let keys = draw(rows(arguments));
    let file = Path::new(arguments.get("file").unwrap());
    let mut hog = None;
    if let Some(tasks) = arguments.get("tasks") {
        std::fs::write(tasks, "0").unwrap();
        read_anew(file);
        hog = Some(take(arguments.taken()));
    }
    let db = open(&sqlite, arguments, file);
    db.run(pragma);
    let mut read = db.prepare("select v from t where k = ?");
    let mut update = db.prepare("update t set n = n + 1 where k = ?");
    let updates = arguments.updates();
    let mut random = fastrand::Rng::with_seed(3);
    let operations = arguments.operations();
    let (mut begin, mut commit) = (db.prepare("begin"), db.prepare("commit"));
    let mut keys = keys.iter().cycle();
    let mut run = |count: usize| {
        let (begun, cpu) = (Instant::now(), cpu_time());
        for number in 0..count {
            if operations > 1 && number % operations == 0 {
                begin.run(None);
            }
            let key = keys.next().copied();
            match random.usize(0..100) < updates {
                true => update.run(key),
                false => read.run(key),
            };
            if operations > 1 && (number + 1) % operations == 0 {
                commit.run(None);
            }
        }
        let count = count as f64;
        let micros = (cpu_time() - cpu).as_secs_f64() * 1e6 / count;
        (count / begun.elapsed().as_secs_f64(), micros)
    };
    let count = arguments.count().next_multiple_of(operations);
    run(2 * count);
    let (rate, micros) = run(count);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: f64 = anonymous
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap();
    let is_alive = hog.as_ref().is_none_or(Hog::is_alive);
    println!("{rate} {micros} {} {}", kib / 1024.0, u8::from(is_alive));
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

impl Hog {
    fn is_alive(&self) -> bool {
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG) == 0 }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
