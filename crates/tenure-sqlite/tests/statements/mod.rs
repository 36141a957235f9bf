//! Statements that follow from a seed, and their answers, printed.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use crate::sqlite::{Connection, Sqlite};

const STATEMENTS: usize = 600;

/// Runs statements on two databases, and prints each with a digest of its answer.
pub fn run(sqlite: &Sqlite, folder: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let db = Connection::open(sqlite, &folder.join("main"), false);
    let other = folder.join("other");
    let page_bytes = 512 << random.u32(0..8);
    db.run(&format!(
        "pragma page_size={page_bytes}; attach '{}' as other; \
         create table t(k integer primary key, v, filler); create index tv on t(v); \
         create table other.t2(k, v); create temp table scratch(k, v)",
        other.display()
    ));
    for number in 0..STATEMENTS {
        let sql = statement(&mut random);
        let answer = db.try_run(&sql);
        let mut hasher = DefaultHasher::new();
        answer.hash(&mut hasher);
        let code = answer.map_or_else(|(code, _)| code, |_| 0);
        println!("{number} {code} {:x} {sql}", hasher.finish());
    }
    let _ = db.try_run("rollback");
    for check in ["pragma integrity_check", "pragma other.integrity_check"] {
        assert_eq!(db.run(check), ["ok"], "seed {seed}");
    }
    let sums = db.run("select count(*), sum(k), sum(v), sum(length(filler)) from t");
    println!("{sums:?}");
}

fn statement(random: &mut fastrand::Rng) -> String {
    let key = random.u32(..3000);
    let value = random.u32(..1000);
    let len = random.u32(..3000);
    match random.u32(..100) {
        0..25 => format!("insert or replace into t values({key}, {value}, hex(zeroblob({len})))"),
        25..30 => format!(
            "with recursive n(i) as (select {key} union all select i + 1 from n limit 200) \
             insert or ignore into t select i, i * {value} % 1009, hex(zeroblob({len} % 500)) from n"
        ),
        30..38 => format!("update t set v = v + 1, filler = filler || '{key}' where v = {value}"),
        38..44 => format!("delete from t where k between {key} and {key} + {len} / 100"),
        44..60 => {
            format!("select k, v, length(filler) from t where k >= {key} order by k limit 50")
        }
        60..68 => {
            format!("select k, filler from t where v between {value} and {value} + 20 order by k")
        }
        68..71 => "select count(*), sum(v), sum(length(filler)) from t".into(),
        71..74 => format!("insert into t2 select k, v from t where v < {value} / 10"),
        74..76 => "select t.k, t2.v from t join t2 using(k) order by t.k, t2.v limit 100".into(),
        76..78 => format!(
            "insert into scratch select k, v from t where k > {key}; select count(*) from scratch"
        ),
        78..81 => "begin".into(),
        81..83 => "commit".into(),
        83..85 => "rollback".into(),
        85..87 => format!("savepoint s{}", value % 3),
        87..89 => format!("rollback to s{}", value % 3),
        89 => format!("release s{}", value % 3),
        90 => format!("pragma page_size={}; vacuum", 512 << (value % 8)),
        91 => "vacuum".into(),
        92 => "pragma journal_mode=wal".into(),
        93 => "pragma journal_mode=delete".into(),
        94 => "pragma wal_checkpoint(truncate)".into(),
        95 => format!("pragma cache_size={}", value % 400),
        96 => "pragma shrink_memory".into(),
        97 => format!("pragma cache_spill={}", value % 2),
        98 => "delete from t2; delete from scratch".into(),
        _ => "reindex; analyze".into(),
    }
}
