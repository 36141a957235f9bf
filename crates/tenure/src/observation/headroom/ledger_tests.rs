//! Tests of the ledger, without real memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn read(ledger: &Ledger, size_bytes: usize, free_bytes: usize) {
    let start = ledger.begin_reading(monotonic_nanos());
    let limit = Limit {
        size_bytes,
        free_bytes,
    };
    ledger.end_reading(&start, &[limit], 1);
}

/// A ledger with a reading of a limit of 128 MiB, of which so much is free.
fn with_free(free_bytes: usize) -> Ledger {
    let ledger = Ledger::new();
    read(&ledger, 128 * MIB, free_bytes);
    ledger
}

#[test]
fn nothing_is_admitted_before_the_first_reading() {
    let ledger = Ledger::new();
    assert!(ledger.is_due() && !ledger.has_reading());
    assert!(!ledger.take(1, Watermark::Min));
    assert!(ledger.take(0, Watermark::Min));
}

#[test]
fn admissions_stay_above_their_watermark() {
    for (watermark, left_kib) in [
        (Watermark::Min, 512),
        (Watermark::Low, 4 * 1024),
        (Watermark::High, 16 * 1024),
    ] {
        let ledger = with_free(100 * MIB);
        let max_bytes = 100 * MIB - left_kib * KIB;
        assert!(!ledger.take(max_bytes + 1, watermark), "{watermark:?}");
        assert!(ledger.take(max_bytes, watermark), "{watermark:?}");
        assert!(!ledger.take(1, watermark), "{watermark:?}");
        ledger.give_back(MIB);
        assert!(ledger.take(MIB, watermark), "{watermark:?}");
    }
    assert!(!with_free(0).take(usize::MAX, Watermark::Min));
}

#[test]
fn tightest_of_several_limits_decides() {
    let ledger = Ledger::new();
    let start = ledger.begin_reading(1);
    let limit = |size_bytes, free_bytes| Limit {
        size_bytes,
        free_bytes,
    };
    let limits = [
        limit(64 * GIB, GIB),
        limit(GIB, 200 * MIB),
        limit(128 * MIB, 199 * MIB),
    ];
    ledger.end_reading(&start, &limits, 1);
    assert_eq!(
        ledger.surplus(Watermark::Min),
        (199 * MIB - 512 * KIB) as isize
    );
    // The reserve of the machine is 5 GiB.
    assert_eq!(
        ledger.surplus(Watermark::High),
        GIB as isize - 5 * GIB as isize
    );
}

#[test]
fn outstanding_bytes_stay_taken_after_a_reading() {
    let ledger = with_free(100 * MIB);
    assert!(ledger.take(60 * MIB, Watermark::Min));
    // Half of it is resident, and in the next reading.
    ledger.mark_resident(30 * MIB);
    read(&ledger, 128 * MIB, 70 * MIB);
    assert_eq!(ledger.outstanding_bytes(), 30 * MIB);
    assert!(!ledger.take(40 * MIB, Watermark::Min));
    assert!(ledger.take(39 * MIB, Watermark::Min));
}

#[test]
fn resident_bytes_stay_taken_until_the_next_reading() {
    let ledger = with_free(100 * MIB);
    assert!(ledger.take(90 * MIB, Watermark::Min));
    ledger.mark_resident(90 * MIB);
    assert!(!ledger.take(20 * MIB, Watermark::Min));
    read(&ledger, 128 * MIB, 100 * MIB);
    assert!(ledger.take(20 * MIB, Watermark::Min));
}

#[test]
fn freed_bytes_can_be_taken_before_the_next_reading() {
    let ledger = with_free(100 * MIB);
    assert!(ledger.take(90 * MIB, Watermark::Min));
    ledger.mark_resident(90 * MIB);
    ledger.release(50 * MIB, || {
        assert!(!ledger.take(20 * MIB, Watermark::Min));
        ((), 40 * MIB)
    });
    assert_eq!(ledger.outstanding_bytes(), 0);
    assert!(ledger.take(49 * MIB, Watermark::Min));
    assert!(!ledger.take(MIB, Watermark::Min));
}

#[test]
fn bytes_freed_during_a_reading_count_once() {
    let ledger = with_free(10 * MIB);
    let start = ledger.begin_reading(1);
    // The sample is taken after the free.
    let free_bytes = ledger.release(50 * MIB, || (60 * MIB, 50 * MIB));
    let limit = Limit {
        size_bytes: 128 * MIB,
        free_bytes,
    };
    ledger.end_reading(&start, &[limit], 1);
    assert!(!ledger.take(60 * MIB, Watermark::Min));
}

#[test]
fn small_amounts_keep_no_credit_where_memory_is_short() {
    let ledger = with_free(2 * GIB);
    read(&ledger, 4 * GIB, 2 * GIB);
    assert!(ledger.take(4 * KIB, Watermark::High));
    let committed = ledger.committed.0.load(Ordering::Relaxed);
    assert_eq!(committed, CREDIT_BYTES as isize);
    assert_eq!(ledger.outstanding_bytes(), 4 * KIB);
    // A thread that takes everything gets the credit of all shards.
    let left = ledger.surplus(Watermark::Min) as usize + CREDIT_BYTES - 4 * KIB;
    assert!(ledger.take(left, Watermark::Min));
    assert!(!ledger.take(1, Watermark::Min));
}

#[test]
fn failed_reading_keeps_the_last_one_and_is_not_repeated_at_once() {
    let ledger = with_free(100 * MIB);
    assert!(ledger.take(60 * MIB, Watermark::Min) && ledger.is_due());
    let surplus = ledger.surplus(Watermark::Min);
    ledger.abandon_reading(&ledger.begin_reading(monotonic_nanos()));
    assert!(!ledger.is_due());
    assert_eq!(ledger.surplus(Watermark::Min), surplus);
    let first = Ledger::new();
    first.abandon_reading(&first.begin_reading(monotonic_nanos()));
    assert!(!first.has_reading() && !first.take(1, Watermark::Min));
}

#[test]
fn reading_is_due_when_old_or_much_was_taken() {
    let ledger = with_free(100 * MIB);
    assert!(!ledger.is_due());
    assert!(ledger.take(20 * MIB, Watermark::Min) && !ledger.is_due());
    assert!(ledger.take(10 * MIB, Watermark::Min) && ledger.is_due());
    let start = ledger.begin_reading(1);
    ledger.end_reading(&start, &[], 1);
    assert!(ledger.is_due(), "it began when the machine booted");
}

/// Threads take and free memory of a simulated limit while another one reads it.
#[test]
fn concurrent_admissions_stay_below_the_limit() {
    const SIZE_BYTES: usize = 64 * MIB;
    const THREADS: usize = 8;
    let ledger = Ledger::new();
    let used_bytes = AtomicUsize::new(0);
    let max_bytes = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let reader = || {
        while !is_over.load(Ordering::Relaxed) {
            let start = ledger.begin_reading(1);
            thread::yield_now();
            let free_bytes = SIZE_BYTES - used_bytes.load(Ordering::SeqCst);
            thread::yield_now();
            let limit = Limit {
                size_bytes: SIZE_BYTES,
                free_bytes,
            };
            ledger.end_reading(&start, &[limit], 1);
        }
    };
    let worker = |number: usize| {
        let mut held = Vec::new();
        let mut random = number as u64 + 1;
        let mut admitted = 0;
        while admitted < 3000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let bytes = (1 + random as usize % 512) * 4 * KIB;
            if random.is_multiple_of(3) && !held.is_empty() {
                let index = random as usize % held.len();
                let bytes = held.swap_remove(index);
                ledger.release(bytes, || {
                    used_bytes.fetch_sub(bytes, Ordering::SeqCst);
                    ((), bytes)
                });
            } else if ledger.take(bytes, Watermark::Min) {
                for part in [bytes / 2, bytes - bytes / 2] {
                    let used = used_bytes.fetch_add(part, Ordering::SeqCst) + part;
                    max_bytes.fetch_max(used, Ordering::SeqCst);
                    ledger.mark_resident(part);
                }
                held.push(bytes);
                admitted += 1;
            } else {
                thread::yield_now();
            }
        }
        let bytes = held.iter().sum();
        ledger.release(bytes, || {
            used_bytes.fetch_sub(bytes, Ordering::SeqCst);
            ((), bytes)
        });
    };
    thread::scope(|scope| {
        scope.spawn(reader);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || worker(number)))
            .collect();
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(joined.iter().all(Result::is_ok));
    });
    assert_eq!(ledger.outstanding_bytes(), 0);
    let max_bytes = max_bytes.into_inner();
    let limit_bytes = SIZE_BYTES - 512 * KIB;
    assert!(max_bytes <= limit_bytes, "{max_bytes} of {limit_bytes}");
    assert!(max_bytes > SIZE_BYTES / 2, "{max_bytes}");
}
