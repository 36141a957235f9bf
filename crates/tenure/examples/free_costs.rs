//! Measures the cost of freeing memory on this machine, by size and by policy:
//! `cargo run --release --example free_costs`

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the example owns all memory that it passes to unsafe calls"
)]

use std::time::Instant;

use rustix::mm::{Advice, madvise};
use tenure::{HugePages, Mapping, PageRange, lazy_free::FreePolicy, page_size};

const ROUNDS: usize = 201;

type Free = fn(PageRange);

const WAYS: [(&str, Free); 8] = [
    ("MADV_FREE", |range| advise(range, Advice::LinuxFree)),
    ("lazy_free", |range| unsafe { range.lazy_free() }.unwrap()),
    ("free, Adaptive", |range| {
        unsafe { range.free(FreePolicy::Adaptive) }.unwrap()
    }),
    ("MADV_DONTNEED", |range| {
        advise(range, Advice::LinuxDontNeed)
    }),
    ("free, Eager", |range| {
        unsafe { range.free(FreePolicy::Eager) }.unwrap()
    }),
    ("discard", |range| unsafe { range.discard() }.unwrap()),
    ("MADV_FREE, then MADV_PAGEOUT", |range| {
        advise(range, Advice::LinuxFree);
        advise(range, Advice::LinuxPageOut);
    }),
    ("reuse", |range| range.reuse()),
];

fn main() {
    let page_counts = [1, 16, 31, 64, 1024, 16384];
    print!("{:30}", "µs, pages:");
    page_counts.iter().for_each(|count| print!("{count:>10}"));
    println!();
    for (name, free) in WAYS {
        print!("{name:30}");
        for page_count in page_counts {
            print!("{:10.2}", median_us(page_count, free));
        }
        println!();
    }
}

fn advise(range: PageRange, advice: Advice) {
    unsafe { madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
}

fn median_us(page_count: usize, free: Free) -> f64 {
    let memory = Mapping::anonymous(page_count * page_size()).huge_pages(HugePages::Never);
    let mut memory = memory.map().unwrap();
    let rounds = if page_count > 1024 { 21 } else { ROUNDS };
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            memory.as_mut_slice().unwrap().fill(1);
            let before = Instant::now();
            free(memory.range());
            before.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
