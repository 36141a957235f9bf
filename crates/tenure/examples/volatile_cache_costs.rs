//! Measures the cost of a `VolatileCache` on this machine:
//! `cargo run --release --example volatile_cache_costs`
//!
//! It takes up to 1 GiB of memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tenure::{VolatileCache, page_size};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn main() -> tenure::Result<()> {
    println!("a hit on 10,000 values of 16 KiB, without reading them:");
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    for threads in [1, 2] {
        let cache = filled(10_000, 16 * KIB)?;
        show(&format!("used recently, {threads} threads"), || {
            hits(&cache, threads, 300_000)
        });
    }
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let cache = filled(10_000, 16 * KIB)?;
    show("offered, then offered again", || hits(&cache, 1, 20_000));
    tenure::volatile::set_offer_delay(Duration::from_millis(100));
    show("a miss", || misses(&cache));

    println!("an insertion, with the bytes copied:");
    for (len, count) in [
        (4 * KIB, 20_000),
        (16 * KIB, 10_000),
        (64 * KIB, 4000),
        (MIB, 400),
    ] {
        show(&format!("{} KiB", len / KIB), || {
            let cache = VolatileCache::new();
            let began = Instant::now();
            fill(&cache, count, len).map(|()| began.elapsed().as_nanos() as f64 / count as f64)
        });
        let heap_ns = |()| {
            let began = Instant::now();
            let values: Vec<Vec<u8>> = (0..count).map(|_| vec![7; len]).collect();
            black_box(&values);
            Ok(began.elapsed().as_nanos() as f64 / count as f64)
        };
        show("  the same on the heap", || heap_ns(()));
    }

    let before_kib = rss_kib();
    let cache = filled(100_000, page_size())?;
    let each = (rss_kib() - before_kib) * KIB / cache.len() - page_size();
    println!("  beside the value and its key of 8 bytes: {each} bytes");
    Ok(())
}

fn filled(count: u64, len: usize) -> tenure::Result<VolatileCache<u64>> {
    let cache = VolatileCache::new();
    fill(&cache, count, len)?;
    Ok(cache)
}

fn fill(cache: &VolatileCache<u64>, count: u64, len: usize) -> tenure::Result<()> {
    let bytes = vec![7; len];
    (0..count).try_for_each(|key| cache.insert(key, &bytes))
}

/// Returns the time of one hit in nanoseconds.
fn hits(cache: &VolatileCache<u64>, threads: u64, count: u64) -> tenure::Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for round in 0..count {
                    let key = (round * 7919 + thread * 5000) % 10_000;
                    assert!(black_box(cache.get(&key)).is_some(), "there is memory");
                }
            });
        }
    });
    Ok(began.elapsed().as_nanos() as f64 / count as f64)
}

fn misses(cache: &VolatileCache<u64>) -> tenure::Result<f64> {
    const COUNT: u64 = 300_000;
    let began = Instant::now();
    for key in 0..COUNT {
        assert!(cache.get(&(1 << 40 | key)).is_none());
    }
    Ok(began.elapsed().as_nanos() as f64 / COUNT as f64)
}

fn show(what: &str, run: impl Fn() -> tenure::Result<f64>) {
    let mut figures: Vec<f64> = (0..5).filter_map(|_| run().ok()).collect();
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        5 => println!(
            "  {what}: {:.0} ns ({:.0} to {:.0})",
            figures[2], figures[0], figures[4]
        ),
        _ => println!("  {what}: failed"),
    }
}

/// Returns the resident memory of this process.
fn rss_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
