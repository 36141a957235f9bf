//! Databases of the system's libsqlite3 whose pages are purged all the time: the same
//! answers as without the cache, and nothing lost when the process is killed.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call SQLite's functions with what those have returned"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod sqlite;
mod statements;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use sqlite::{Connection, Sqlite, is_available};
use tenure::stats;
use tenure::volatile::{purge_all, set_offer_delay};

tests!(
    unless: || (!is_available()).then_some("there is no libsqlite3.so.0");
    random_statements_have_the_answers_of_plain_sqlite,
    [thorough] many_random_statements_have_the_answers_of_plain_sqlite,
    connections_of_threads_leave_an_intact_database,
    database_is_intact_after_5_kills,
    [thorough] database_is_intact_after_100_kills,
    installation_after_initialization_is_misuse,
    shrink_memory_drops_all_pages;
    children:
    run_statements,
    use_threads,
    write_for_ever,
    install_late,
    shrink,
);

const FOLDER: &str = "TENURE_TEST_FOLDER";
const SEED: &str = "TENURE_TEST_SEED";
const IS_PLAIN: &str = "TENURE_TEST_PLAIN";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn child(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--child", name]).env(FOLDER, folder);
    command
}

/// Loads SQLite, with the page cache unless the child is a plain one.
fn start() -> Sqlite {
    let sqlite = Sqlite::load();
    if std::env::var_os(IS_PLAIN).is_none() {
        unsafe { tenure_sqlite::install_with(sqlite.config) }.unwrap();
        // The cache waits 100 times as long where enough memory is left.
        set_offer_delay(Duration::from_micros(2));
        std::thread::spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            loop {
                std::thread::sleep(Duration::from_micros(random.u64(0..2000)));
                purge_all().unwrap();
            }
        });
    }
    sqlite
}

fn random_statements_have_the_answers_of_plain_sqlite() {
    compare(0..3);
}

fn many_random_statements_have_the_answers_of_plain_sqlite() {
    compare(100..120);
}

fn compare(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let answers = [true, false].map(|is_plain| {
            let folder = tempfile::tempdir().unwrap();
            let mut command = child("run_statements", folder.path());
            command.env(SEED, seed.to_string());
            if is_plain {
                command.env(IS_PLAIN, "1");
            }
            let output = command.output().unwrap();
            assert_ended_well(&format!("seed {seed}"), &output);
            String::from_utf8(output.stdout).unwrap()
        });
        let [plain, purged] = &answers;
        assert!(plain.lines().count() > 100, "{plain}");
        let differs = plain.lines().zip(purged.lines()).find(|(a, b)| a != b);
        assert!(plain == purged, "seed {seed}: {differs:?}");
    }
}

fn run_statements() {
    let sqlite = start();
    let seed = variable(SEED).parse().unwrap();
    statements::run(&sqlite, Path::new(&variable(FOLDER)), seed);
    if std::env::var_os(IS_PLAIN).is_none() {
        assert!(stats().mark_volatile.calls > 0, "the cache is not in use");
    }
}

fn connections_of_threads_leave_an_intact_database() {
    let folder = tempfile::tempdir().unwrap();
    let output = child("use_threads", folder.path()).output().unwrap();
    assert_ended_well("use_threads", &output);
}

fn use_threads() {
    let sqlite = start();
    let folder = variable(FOLDER);
    for (name, journal, is_shared) in [
        ("a", "wal", false),
        ("b", "delete", false),
        ("c", "wal", true),
    ] {
        let file = Path::new(&folder).join(name);
        let db = Connection::open(&sqlite, &file, is_shared);
        db.run(&format!("pragma journal_mode={journal}"));
        db.run("create table t(thread, n, filler); create index i on t(n)");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (sqlite, file) = (&sqlite, &file);
                scope.spawn(move || {
                    let db = Connection::open(sqlite, file, is_shared);
                    for n in 0..100 {
                        db.run_until_free(&format!(
                            "insert into t values({thread}, {n}, randomblob(700))"
                        ));
                        db.run_until_free("select sum(length(filler)) from t where n % 7 = 1");
                    }
                });
            }
        });
        assert_eq!(db.run("select count(*), sum(n) from t"), ["400|19800"]);
        assert_eq!(db.run("pragma integrity_check"), ["ok"]);
    }
}

fn database_is_intact_after_5_kills() {
    kill(5);
}

fn database_is_intact_after_100_kills() {
    kill(100);
}

/// Kills a process in the middle of its writes, again and again, each after another number of
/// transactions, and checks the database with a plain SQLite.
fn kill(times: usize) {
    let folder = tempfile::tempdir().unwrap();
    for time in 0..times {
        let mut writer = child("write_for_ever", folder.path())
            .env(SEED, time.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let committed = lines.take(1 + time % 13).last().unwrap().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let sqlite = Sqlite::load();
        let db = Connection::open(&sqlite, &folder.path().join("db"), false);
        assert_eq!(db.run("pragma integrity_check"), ["ok"], "kill {time}");
        let count: u64 = db.run("select count(*) from done")[0].parse().unwrap();
        let committed: u64 = committed.parse().unwrap();
        assert!(count >= committed, "kill {time}: {count} of {committed}");
        let sums = db.run("select (select sum(v) from t), (select sum(v) from copy)");
        let (one, other) = sums[0].split_once('|').unwrap();
        assert_eq!(one, other, "kill {time}");
    }
}

fn write_for_ever() {
    let sqlite = start();
    let seed: u64 = variable(SEED).parse().unwrap();
    let db = Connection::open(&sqlite, &Path::new(&variable(FOLDER)).join("db"), false);
    let journal = if seed.is_multiple_of(2) {
        "wal"
    } else {
        "delete"
    };
    db.run(&format!(
        "pragma journal_mode={journal}; pragma cache_size=20"
    ));
    for table in ["t", "copy"] {
        db.run(&format!(
            "create table if not exists {table}(k integer primary key, v, filler)"
        ));
    }
    db.run("create table if not exists done(n)");
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        db.run("begin immediate");
        for _ in 0..30 {
            let (key, value) = (random.u32(..2000), random.u32(..));
            for table in ["t", "copy"] {
                db.run(&format!(
                    "insert or replace into {table} values({key}, {value}, zeroblob(500))"
                ));
            }
        }
        db.run("insert into done values(1)");
        db.run("commit");
        println!("{}", db.run("select count(*) from done")[0]);
    }
}

fn installation_after_initialization_is_misuse() {
    let folder = tempfile::tempdir().unwrap();
    let output = child("install_late", folder.path()).output().unwrap();
    assert_ended_well("install_late", &output);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("SQLite is initialized already"), "{errors}");
}

fn install_late() {
    let sqlite = Sqlite::load();
    let db = Connection::open(&sqlite, &Path::new(&variable(FOLDER)).join("db"), false);
    let install = || unsafe { tenure_sqlite::tenure_sqlite3_install_with(Some(sqlite.config)) };
    assert_eq!(install(), 21);
    // It goes on as before.
    assert_eq!(db.run("select 1"), ["1"]);
    assert_eq!(stats().sqlite_pages, 0);
    assert_eq!(
        unsafe { tenure_sqlite::tenure_sqlite3_install_with(None) },
        21
    );
}

fn shrink_memory_drops_all_pages() {
    let folder = tempfile::tempdir().unwrap();
    let output = child("shrink", folder.path()).output().unwrap();
    assert_ended_well("shrink", &output);
}

fn shrink() {
    let sqlite = Sqlite::load();
    unsafe { tenure_sqlite::install_with(sqlite.config) }.unwrap();
    let db = Connection::open(&sqlite, &Path::new(&variable(FOLDER)).join("db"), false);
    db.run("create table t(a); insert into t values(zeroblob(1000000))");
    assert_eq!(db.run("select length(a) from t"), ["1000000"]);
    assert!(stats().sqlite_pages > 0);
    db.run("pragma shrink_memory");
    assert_eq!(stats().sqlite_pages, 0);
}
