//! A load like ebizzy's: a random one of 512 chunks of 256 KiB is copied into a new
//! block, which is searched, and the old chunk is freed.
//!
//! ```sh
//! cargo run --release -p tenure-heap --example chunks -- tenure 4
//! LD_PRELOAD=libjemalloc.so.2 cargo run --release -p tenure-heap --example chunks -- system 4
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, thread};

use tenure_heap::Heap;

const CHUNKS: usize = 512;
const CHUNK_BYTES: usize = 256 << 10;
const WORDS: usize = CHUNK_BYTES / 8;
const TIME: Duration = Duration::from_secs(1);

fn main() {
    let mut arguments = env::args().skip(1);
    let allocator = arguments.next().unwrap_or_else(|| "tenure".to_owned());
    let threads = arguments
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(1);
    let records = match allocator.as_str() {
        "system" => run(&System, threads),
        _ => run(&Heap(System), threads),
    };
    println!("{allocator} {threads} threads: {records:.0} records/s");
}

/// Returns the records per second of all threads.
fn run(allocator: &(impl GlobalAlloc + Sync), threads: usize) -> f64 {
    let stop = AtomicBool::new(false);
    let layout = Layout::from_size_align(CHUNK_BYTES, 16).expect("a valid layout");
    let work = |seed: u64| {
        let mut random = seed + 1;
        let chunks = (0..CHUNKS / threads.min(CHUNKS)).map(|_| {
            // SAFETY: the chunk has CHUNK_BYTES bytes.
            unsafe {
                let chunk: *mut u64 = allocator.alloc(layout).cast();
                (0..WORDS).for_each(|word| chunk.add(word).write(word as u64 * 2));
                chunk
            }
        });
        let mut chunks: Vec<_> = chunks.collect();
        let mut records = 0;
        while !stop.load(Relaxed) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let which = (random >> 33) as usize % chunks.len();
            // SAFETY: both chunks have CHUNK_BYTES bytes, and one is freed, once.
            unsafe {
                let copy: *mut u64 = allocator.alloc(layout).cast();
                copy.copy_from_nonoverlapping(chunks[which], WORDS);
                let key = (random >> 20) % (2 * WORDS as u64);
                let sorted = std::slice::from_raw_parts(copy, WORDS);
                assert_eq!(sorted.binary_search(&key).is_ok(), key.is_multiple_of(2));
                allocator.dealloc(chunks[which].cast(), layout);
                chunks[which] = copy;
            }
            records += 1;
        }
        for chunk in chunks {
            // SAFETY: nobody uses the chunk any more.
            unsafe { allocator.dealloc(chunk.cast(), layout) };
        }
        records as f64
    };
    let before = Instant::now();
    let records: f64 = thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (0..threads)
            .map(|seed| scope.spawn(move || work(seed as u64)))
            .collect();
        thread::sleep(TIME);
        stop.store(true, Relaxed);
        started
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    records / before.elapsed().as_secs_f64()
}
