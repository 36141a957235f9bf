//! The loop of ebizzy, with several numbers of threads, and under a limit.

use anyhow::{Result, ensure};

use super::{
    super::{
        experiment::{Case, Recorder, Unit},
        statistics::Better,
    },
    allocators::{Allocators, MMAP_ALWAYS},
    job::{Done, Job, Search, Waves},
    scale::Scale,
    ways::{PEAK, RECORDS, limited_way, way},
};
use crate::text::bytes_text;

/// What the tables' titles begin with.
pub const SAME_SIZE: &str = "Copy a chunk, search in the copy, free it";
pub const RANDOM_SIZES: &str = "The same with random sizes";
pub const LIMITED: &str = "Under a limit";

const FAULTS_A_RECORD: &str = "page faults a record";

/// The sizes of the waves, and so of the blocks that an allocator keeps for
/// nothing when the next wave comes.
const WAVES: [usize; 6] = [
    256 << 10,
    640 << 10,
    384 << 10,
    1536 << 10,
    1 << 20,
    3 << 20,
];
pub const CHUNK: usize = 256 << 10;
const LEAST: usize = 128 << 10;
const MOST: usize = 1 << 20;

/// The cases with chunks of one size, and those with random sizes.
pub fn cases(scale: &Scale, seed: u64, allocators: &Allocators) -> Vec<Case> {
    let same = format!(
        "{SAME_SIZE}: {} chunks of {}",
        scale.chunks,
        bytes_text(CHUNK as f64)
    );
    let random = format!(
        "{RANDOM_SIZES}: {} to {}",
        bytes_text(LEAST as f64),
        bytes_text(MOST as f64)
    );
    let search = |&threads: &usize| Search {
        chunks: scale.chunks,
        chunk_bytes: CHUNK,
        least_bytes: CHUNK,
        threads,
        before: scale.before,
        counted: scale.counted,
        seed,
    };
    let same = scale
        .threads
        .iter()
        .map(search)
        .map(|search| (same.as_str(), search));
    let of_random = |search: Search| Search {
        chunks: search.chunks * CHUNK / MOST,
        chunk_bytes: MOST,
        least_bytes: LEAST,
        ..search
    };
    let random_threads = scale.random_threads.iter().map(search).map(of_random);
    let random = random_threads.map(|search| (random.as_str(), search));
    let case = |(table, search): (&str, Search)| {
        let job = Job::Search(search.clone());
        let ways = allocators.all.iter().map(|allocator| {
            let maps_always = allocator.name == MMAP_ALWAYS;
            way(allocator, job.clone(), move |done, recorder| {
                record(done, maps_always, recorder)
            })
        });
        Case::new(threads_text(search.threads), ways.collect())
            .in_table(table)
            .comparing(RECORDS, Better::More)
            .short()
    };
    same.chain(random).map(case).collect()
}

fn record(done: &Done, maps_always: bool, recorder: &mut Recorder<'_>) -> Result<()> {
    ensure!(
        !maps_always || done.faults >= done.all_records,
        "not each block had new pages"
    );
    recorder.record(RECORDS, Unit::PerSecond, done.rate);
    let faults = done.faults as f64 / done.all_records as f64;
    recorder.record(FAULTS_A_RECORD, Unit::Ratio, faults);
    recorder.record(PEAK, Unit::Bytes, done.peak_bytes as f64);
    Ok(())
}

/// The cases under a limit.
pub fn limited_cases(scale: &Scale, seed: u64, allocators: &Allocators) -> Vec<Case> {
    let live_bytes = scale.limited_live_bytes;
    let threads = scale.limited_threads;
    let search = Job::Search(Search {
        chunks: live_bytes / MOST,
        chunk_bytes: MOST,
        least_bytes: LEAST,
        threads,
        before: scale.before,
        counted: scale.counted,
        seed,
    });
    let waves = Job::Waves(Waves {
        live_bytes,
        wave_bytes: live_bytes / 5,
        blocks: WAVES.to_vec(),
        counted: scale.before + scale.counted,
    });
    let limit_bytes = Scale::limit_bytes(live_bytes);
    let table = format!(
        "{LIMITED} of {}, with {} live",
        bytes_text(limit_bytes as f64),
        bytes_text(live_bytes as f64)
    );
    let case = |name: String, job: Job| {
        let way = |allocator| limited_way(allocator, job.clone(), limit_bytes);
        Case::new(name, allocators.all.iter().map(way).collect())
            .in_table(&table)
            .comparing(RECORDS, Better::More)
            .long()
    };
    vec![
        case(format!("random sizes, {}", threads_text(threads)), search),
        case("waves".to_owned(), waves),
    ]
}

/// Says how many threads.
pub fn threads_text(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        _ => format!("{threads} threads"),
    }
}
