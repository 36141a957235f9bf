//! The option `sqlite-cache`: SQLite has tenure's page cache with it, and is as it was without.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use common::*;
use libtest_mimic::{Completion, Trial};

type Test = (&'static str, fn(&Workshop) -> Verdict);

const SQLITE_CACHE: (&str, &str) = ("TENURE_SQLITE_CACHE", "1");

fn main() -> ExitCode {
    run(|| {
        let shop = Arc::new(Workshop::new());
        let tests: [Test; 9] = [
            ("python_with_sqlite_cache_keeps_its_database", python),
            ("shell_with_sqlite_cache_keeps_its_database", shell),
            ("each_copy_of_sqlite_is_initialized_by_itself", copies),
            (
                "sqlite_is_used_while_the_loader_holds_its_lock",
                constructors,
            ),
            ("constructor_waits_for_thread_that_uses_sqlite", plugin),
            ("copies_at_the_same_addresses_are_told_apart", reloaded),
            ("child_of_fork_uses_sqlite_that_was_being_told", first_use),
            ("sqlite_without_memory_answers_so", no_memory),
            (
                "fork_handlers_wait_for_threads_that_use_sqlite",
                fork_handlers,
            ),
        ];
        let trial = |(name, test): Test| {
            let shop = shop.clone();
            Trial::ignorable_test(name, move || test(&shop)).with_kind("grouped")
        };
        tests.into_iter().map(trial).collect()
    })
}

const PYTHON: &str = r#"
try:
    import sqlite3, _sqlite3
except ImportError:
    print("skipped: python3 has no sqlite3")
    raise SystemExit(77)
import random, sys
wanted = sys.argv[1] == "1"
numbers = random.Random(1)
db = sqlite3.connect(sys.argv[2])
db.execute("pragma synchronous=off")
db.execute("create table t(k integer primary key, v)")
db.executemany("insert into t values(?, ?)", ((n, numbers.randbytes(300)) for n in range(20000)))
db.commit()
total = 0
for _ in range(20000):
    total += db.execute("select length(v) from t where k = ?", (numbers.randrange(20000),)).fetchone()[0]
assert total == 20000 * 300, total
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
with open("/proc/self/maps") as maps:
    is_mapped = "libtenure_sqlite.so" in maps.read()
is_dynamic = "libsqlite3" in open("/proc/self/maps").read()
if wanted and not is_dynamic:
    print("skipped: python3 has SQLite built in")
    raise SystemExit(77)
assert is_mapped == wanted, "mapped: %s" % is_mapped
"#;

fn python(shop: &Workshop) -> Verdict {
    let Some(python) = find("python3") else {
        return Ok(Completion::ignored_with("there is no python3 here"));
    };
    let mut seen = Ok(Completion::Completed);
    for (wanted, options) in [("1", &[SQLITE_CACHE, STATS][..]), ("0", &[VERBOSE])] {
        let database = shop.path(&format!("python{wanted}"));
        let mut command = Command::new(&python);
        command.args(["-c", PYTHON, wanted]).arg(database);
        seen = verdict(put_under(&mut command, options, &[]));
        if !matches!(seen, Ok(Completion::Completed)) {
            break;
        }
    }
    seen
}

fn shell(shop: &Workshop) -> Verdict {
    let Some(shell) = find("sqlite3") else {
        return Ok(Completion::ignored_with("there is no sqlite3 here"));
    };
    const SQL: &str = "pragma synchronous=off; create table t(a, b); \
         with recursive n(i) as (select 1 union all select i + 1 from n limit 20000) \
         insert into t select i, hex(zeroblob(200)) from n; create index ta on t(a); \
         delete from t where a % 3 = 0; pragma page_size = 8192; vacuum; \
         select count(*), sum(a), sum(length(b)) from t; pragma integrity_check;";
    let answer = |options, name: &str| {
        let mut command = Command::new(&shell);
        put_under(command.arg(shop.path(name)).arg(SQL), options, &[]);
        String::from_utf8(ok(&mut command).stdout).unwrap()
    };
    let with = answer(&[SQLITE_CACHE], "with");
    assert_eq!(with, answer(&[], "without"));
    assert!(with.ends_with("\nok\n"), "{with}");
    Ok(Completion::Completed)
}

/// Compiles a library that stands for a copy of SQLite.
fn copy(shop: &Workshop, name: &str, file: &str, flags: &[&str]) -> PathBuf {
    let library = shop.path(&format!("lib{file}.so"));
    let mut compiler = Command::new("cc");
    compiler.args([C11, "-shared", "-fPIC", "-pthread"]);
    compiler.args(STRICT).args(flags);
    compiler.arg(format!("-DNAME={name}"));
    compiler.arg("-o").arg(&library);
    ok(compiler.arg(project("tests/preload/sqlite/copy.c")));
    library
}

/// Runs a program with these copies, with the option and without.
fn with_copies(shop: &Workshop, source: &str, copies: &[PathBuf]) -> Verdict {
    let program = shop.compile(&project("tests/preload/sqlite").join(source), &["-ldl"]);
    for (wanted, options) in [("1", &[SQLITE_CACHE][..]), ("0", &[STATS])] {
        let mut command = Command::new(&program);
        command.arg(wanted).args(copies);
        verdict(put_under(&mut command, options, &[]))?;
    }
    Ok(Completion::Completed)
}

fn copies(shop: &Workshop) -> Verdict {
    let copies = ["one", "two"].map(|name| copy(shop, name, name, &[]));
    with_copies(shop, "copies.c", &copies)
}

fn constructors(shop: &Workshop) -> Verdict {
    let plugin = copy(shop, "two", "plugin", &["-DIN_CONSTRUCTOR"]);
    with_copies(
        shop,
        "constructors.c",
        &[copy(shop, "one", "first", &[]), plugin],
    )
}

fn reloaded(shop: &Workshop) -> Verdict {
    // Their functions lie at other places.
    let sparse = copy(shop, "two", "sparse", &["-falign-functions=256"]);
    with_copies(
        shop,
        "reloaded.c",
        &[copy(shop, "one", "dense", &[]), sparse],
    )
}

fn first_use(shop: &Workshop) -> Verdict {
    let slow = copy(shop, "one", "slow", &["-DCONFIG_MICROS=300000"]);
    with_copies(shop, "first_use.c", &[slow])
}

fn no_memory(shop: &Workshop) -> Verdict {
    let program = shop.compile(&project("tests/preload/sqlite/no_memory.c"), &["-ldl"]);
    let mut command = Command::new(&program);
    command.arg(shop.path("no-memory"));
    verdict(put_under(&mut command, &[SQLITE_CACHE], &[]))
}

fn plugin(shop: &Workshop) -> Verdict {
    if !Path::new("/usr/include/sqlite3.h").exists() {
        return Ok(Completion::ignored_with("there is no sqlite3.h here"));
    }
    let source = |name| project("tests/preload/sqlite").join(name);
    let flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", "-lsqlite3"];
    let plugin = shop.compile(&source("plugin.c"), &flags);
    let program = shop.compile(&source("load.c"), &["-ldl"]);
    for options in [&[SQLITE_CACHE][..], &[STATS]] {
        verdict(put_under(Command::new(&program).arg(&plugin), options, &[]))?;
    }
    Ok(Completion::Completed)
}

fn fork_handlers(shop: &Workshop) -> Verdict {
    if !Path::new("/usr/include/sqlite3.h").exists() {
        return Ok(Completion::ignored_with("there is no sqlite3.h here"));
    }
    let source = project("tests/preload/sqlite/fork_handlers.c");
    let mut command = Command::new(shop.compile(&source, &["-Wl,--no-as-needed", "-lsqlite3"]));
    command.arg(shop.path("fork-handlers"));
    verdict(put_under(&mut command, &[SQLITE_CACHE], &[]))
}
