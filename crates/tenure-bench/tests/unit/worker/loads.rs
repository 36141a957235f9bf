use std::time::Duration;

use fastrand::Rng;

use super::entries::Table;
use super::load::{Shelf, cfrac, larson, sh6bench};
use super::marked::{MIN_LEN, Marked, skewed};
use super::neighbour;
use super::objects::Heap;
use super::phases::Thread;
use super::rate::count;
use super::{pass, rate};
use crate::machine::clock::{Clock, MonotonicClock, mock::SteppingClock};
use crate::worker::job::{Done, Load, Manner, Neighbour, Objects, PHASES};

/// Lengths around those at which a block has one more mark.
const LENS: [usize; 9] = [16, 17, 4095, 4096, 4104, 4111, 4112, 8192, 9000];

#[test]
fn marked_block_of_each_length_is_right() {
    for len in LENS {
        let block = Marked::new(len).unwrap();
        assert_eq!((block.len(), block.wrong()), (len, 0));
    }
    assert_eq!(Marked::new(1).unwrap().len(), MIN_LEN);
    assert!(Marked::new(usize::MAX / 2).is_err());
}

#[test]
fn spoilt_mark_is_counted_as_wrong() {
    for len in LENS {
        let mut block = Marked::new(len).unwrap();
        block.spoil(0);
        assert_eq!(block.wrong(), 1, "{len}");
        block.spoil(len - 1);
        assert_eq!(block.wrong(), 2, "{len}");
    }
    let mut block = Marked::new(3 * 4096).unwrap();
    block.spoil(4096);
    block.spoil(2 * 4096);
    block.spoil(100);
    assert_eq!(block.wrong(), 2, "there is no mark at 100");
}

#[test]
fn marked_block_that_grows_tells_what_was_not_kept() {
    let mut block = Marked::new(64).unwrap();
    for len in [65, 5000, 1 << 20] {
        assert_eq!(block.grow(len).unwrap(), 0);
        assert_eq!((block.len(), block.wrong()), (len, 0));
    }
    block.spoil(0);
    assert_eq!(block.grow(2 << 20).unwrap(), 1);
    assert_eq!(block.wrong(), 0, "new marks");
}

#[test]
fn skewed_lengths_lie_in_the_doublings() {
    let mut rng = Rng::with_seed(3);
    let drawn: Vec<usize> = (0..1000).map(|_| skewed(&mut rng, 16, 6)).collect();
    assert!(drawn.iter().all(|len| (16..1024).contains(len)));
    for from in [16, 32, 64, 128, 256, 512] {
        let lens = drawn.iter().filter(|len| (from..2 * from).contains(*len));
        assert!((100..250).contains(&lens.count()), "from {from}");
    }
}

#[test]
fn phases_keep_the_marks_of_their_blocks() {
    let mut thread = Thread::new(Rng::with_seed(3));
    for phase in PHASES {
        assert_eq!(thread.phase(phase, 8 << 20).unwrap(), 0, "{}", phase.name);
    }
    assert_eq!(thread.wrong(), 0);
}

#[test]
fn table_loses_half_of_its_entries_and_keeps_the_others() {
    let mut table = Table::new(3);
    for _ in 0..2000 {
        let entry = table.entry().unwrap();
        table.slots.push(Some(entry));
    }
    (0..5000).for_each(|_| table.change().unwrap());
    let count = |table: &Table| table.slots.iter().flatten().count();
    let before = count(&table);
    assert!((1000..2000).contains(&before), "{before}");
    table.delete_half();
    let after = count(&table);
    assert!((before / 3..before / 3 * 2).contains(&after), "{after}");
    let left = table.slots.iter().flatten();
    assert_eq!(
        table.wrong + left.map(|entry| entry.wrong()).sum::<u64>(),
        0
    );
    let entry = table.slots.iter_mut().flatten().next().unwrap();
    entry.value.spoil(0);
    assert_eq!(entry.wrong(), 1);
}

#[test]
fn objects_lists_and_arenas_keep_their_marks() {
    let objects = Objects {
        live: 2000,
        count: 0,
        seed: 3,
    };
    let mut heap = Heap::new(objects);
    (0..50_000).for_each(|index| heap.step(index).unwrap());
    (0..1000).for_each(|_| heap.grow_a_list().unwrap());
    heap.shrink();
    assert_eq!(heap.wrong, 0);
}

#[test]
fn step_of_each_load_counts_blocks_and_has_right_answers() {
    type Step<'a> = Box<dyn FnMut(&mut Done) -> anyhow::Result<()> + 'a>;
    let mut rng = Rng::with_seed(3);
    let shelf = Shelf::of(2, &mut rng).unwrap();
    let mut steps: [Step<'_>; 3] = [
        Box::new(larson(&shelf, rng.fork())),
        Box::new(cfrac(rng.fork())),
        Box::new(sh6bench(rng.fork())),
    ];
    for step in &mut steps {
        let mut done = Done::default();
        (0..3).for_each(|_| step(&mut done).unwrap());
        assert!(done.all_records >= 3000);
        assert_eq!(done.wrong, 0);
    }
}

fn load(threads: usize) -> Load {
    Load {
        manner: Manner::Queue,
        threads,
        before: Duration::from_millis(50),
        counted: Duration::from_millis(200),
        seed: 3,
    }
}

#[test]
fn blocks_that_are_passed_on_keep_their_marks() {
    let load = Load {
        before: Duration::from_millis(1),
        counted: Duration::from_millis(10),
        ..load(4)
    };
    let rngs = || (0..4).map(Rng::with_seed).collect();
    let begin = MonotonicClock::SHARED.now();
    let blocks = pass::run(&load, begin, rngs(), pass::block).unwrap();
    let batches = pass::run(&load, begin, rngs(), pass::batch).unwrap();
    for threads in [blocks, batches] {
        let done = rate::sum(&threads);
        assert!(done.rate > 0.0 && done.all_records > 0);
        assert_eq!(done.wrong, 0);
    }
}

#[test]
fn passing_blocks_with_one_thread_is_an_error() {
    let rngs = vec![Rng::with_seed(3)];
    let passed = pass::run(&load(1), Duration::ZERO, rngs, pass::block);
    assert!(passed.is_err());
}

#[test]
fn steps_count_when_they_begin_within_the_time() {
    let clock = SteppingClock::default();
    let step = |done: &mut Done| {
        done.all_records += 3;
        Ok(())
    };
    let done = count(&load(1), Duration::ZERO, &clock, step).unwrap();
    // Those that begin from 50 ms on and end at 250 ms.
    assert_eq!(done.all_records, 25 * 3);
    assert!((done.rate - 300.0).abs() < 1e-6, "{}", done.rate);
}

#[test]
fn neighbour_counts_its_bursts_and_its_live_blocks() {
    let counted = Duration::from_secs(5);
    let work = |burst_bytes| {
        let neighbour = Neighbour {
            live_bytes: 1 << 20,
            burst_bytes,
            counted,
            seed: 3,
        };
        let mut rng = Rng::with_seed(3);
        let live = neighbour::blocks(1 << 20, &mut rng).unwrap();
        neighbour::work(neighbour, live, &mut rng, &SteppingClock::default()).unwrap()
    };
    let (calm, bursting) = (work(0), work(4 << 20));
    assert_eq!((calm.wrong, bursting.wrong), (0, 0));
    // 64 blocks at each look but the few that begin and end a burst.
    assert!((30_000..32_000).contains(&calm.all_records), "{calm:?}");
    assert!(bursting.all_records > calm.all_records);
    assert_eq!(calm.rate, calm.all_records as f64 / 5.0);
}

#[test]
fn neighbour_counts_spoilt_marks_of_its_live_blocks() {
    let neighbour = Neighbour {
        live_bytes: 1 << 20,
        burst_bytes: 0,
        counted: Duration::ZERO,
        seed: 3,
    };
    let mut rng = Rng::with_seed(3);
    let mut live = neighbour::blocks(1 << 20, &mut rng).unwrap();
    live[0].spoil(0);
    let done = neighbour::work(neighbour, live, &mut rng, &SteppingClock::default()).unwrap();
    assert_eq!(done.wrong, 1);
}
