use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

use fastrand::Rng;

use super::block::*;
use super::burst::{make, numbered, wrong};
use super::ebizzy::Thread;
use super::large::{grow, sparse, sum_of};
use super::served::{first_word, is_mapped, mimalloc_version};
use crate::machine::clock::mock::SteppingClock;
use crate::worker::job::{BlocksOf, Search, TIMES};

#[test]
fn block_that_grows_keeps_its_words() {
    let block = Block::of_words(4096, 0..).unwrap();
    let mut block = block.grow(1 << 20, 512..).unwrap();
    assert_eq!(block.bytes().len(), 1 << 20);
    let found = [0, 511, 512, 131_071].map(|index| word_at(block.bytes(), index));
    assert_eq!(found, [0, 511, 512, 131_071]);
    block.bytes_mut()[0] = 9;
    let copy = Block::copy_of(block.bytes()).unwrap();
    assert!(copy.bytes() == block.bytes());
}

#[test]
fn block_of_few_words_ends_with_the_last() {
    let block = Block::of_words(4096, 0..3).unwrap();
    assert_eq!(block.bytes().len(), 24);
}

#[test]
fn zeroed_block_is_zero_or_an_error() {
    let block = Block::zeroed(1 << 20).unwrap();
    assert!(block.bytes().iter().all(|&byte| byte == 0));
    assert!(Block::zeroed(usize::MAX / 2).is_err());
}

#[test]
fn word_is_found_unless_it_is_missing() {
    const COUNT: usize = 1000;
    let mut rng = Rng::with_seed(3);
    let words = ascending(&mut rng).take(COUNT);
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    for index in [0, 1, 777, COUNT - 1] {
        assert!(contain(&bytes, word_at(&bytes, index)));
        assert!(!contain(&bytes, word_at(&bytes, index) + 1));
    }
    assert!(!contain(&vec![0; bytes.len()], word_at(&bytes, 99)));
}

#[test]
fn burst_frees_and_keeps_as_much_as_told() {
    let mut live = Vec::new();
    let mut rng = Rng::with_seed(5);
    let freed = make(12 << 20, 3 << 20, &mut live, &mut rng).unwrap();
    let bytes = |blocks: &[Block]| blocks.iter().map(|block| block.bytes().len()).sum();
    let (live_bytes, freed_bytes): (usize, usize) = (bytes(&live), bytes(&freed));
    assert_eq!((live_bytes, freed_bytes), (3 << 20, 12 << 20));
    assert!(freed.iter().all(|block| wrong(block) == 0));
}

#[test]
fn changed_word_is_counted_as_wrong() {
    let mut block = numbered(64 << 10).unwrap();
    assert_eq!(wrong(&block), 0);
    block.bytes_mut()[8192] ^= 1;
    assert_eq!(wrong(&block), 1);
}

fn search(blocks: BlocksOf, block_count: usize) -> Search {
    Search {
        blocks,
        block_count,
        chunks: 1,
        chunk_bytes: 64 << 10,
        min_bytes: 8 << 10,
        threads: 1,
        before: Duration::from_millis(50),
        counted: Duration::from_millis(200),
        seed: 3,
    }
}

fn chunks() -> [Block; 1] {
    let mut rng = Rng::with_seed(3);
    [Block::of_words(64 << 10, ascending(&mut rng)).unwrap()]
}

#[test]
fn records_with_all_kinds_of_blocks_are_right() {
    let chunks = chunks();
    for (blocks, block_count) in [
        (BlocksOf::Malloc, 0),
        (BlocksOf::MapEachTime, 2),
        (BlocksOf::DontNeed, 2),
        (BlocksOf::Free, 2),
        (BlocksOf::Adaptive, 2),
    ] {
        let search = search(blocks, block_count);
        let mut thread = Thread::prepare(search, &chunks, Rng::with_seed(3)).unwrap();
        (0..100).for_each(|record| thread.make_record(record % 2).unwrap());
        assert_eq!(thread.done.wrong, 0, "{blocks:?}");
    }
}

#[test]
fn spoilt_chunk_gives_wrong_answers() {
    let mut chunks = chunks();
    chunks[0].bytes_mut()[..32 << 10].reverse();
    let search = search(BlocksOf::Malloc, 0);
    let mut thread = Thread::prepare(search, &chunks, Rng::with_seed(3)).unwrap();
    (0..100).for_each(|_| thread.make_record(0).unwrap());
    assert_ne!(thread.done.wrong, 0);
}

#[test]
fn records_count_when_they_end_within_the_time() {
    let (search, chunks) = (search(BlocksOf::Malloc, 0), chunks());
    let thread = Thread::prepare(search, &chunks, Rng::with_seed(3)).unwrap();
    let done = thread
        .run(Duration::ZERO, &SteppingClock::default())
        .unwrap();
    // At 50 ms, at 250 ms, and all 10 ms between; the one at 260 ms is the last.
    assert_eq!((done.rate, done.all_records, done.wrong), (105.0, 26, 0));
}

#[test]
fn arrays_of_each_kind_have_right_answers() {
    let a = Block::of_words(1 << 20, 0..).unwrap();
    let b = Block::of_words(1 << 20, (0..1 << 17).rev()).unwrap();
    assert_eq!(sum_of(&a, &b).unwrap(), 0);
    assert_eq!(
        sum_of(&a, &a).unwrap(),
        0,
        "ascending indices twice have the same sum"
    );
    assert_eq!(
        sum_of(&b, &Block::of_words(1 << 20, 1..).unwrap()).unwrap(),
        TIMES as u64
    );
    assert_eq!(sparse(4 << 20).unwrap(), 0);
    assert_eq!(grow(4 << 20).unwrap(), 0);
}

#[test]
fn mapped_file_is_found_by_a_part_of_its_name() {
    let own = std::env::current_exe().unwrap();
    let name = own.file_name().unwrap().to_str().unwrap();
    assert!(is_mapped(name).unwrap() && is_mapped("").unwrap());
    assert!(!is_mapped("libno_such_allocator").unwrap());
}

#[test]
fn version_of_mimalloc_has_one_or_two_digits_for_each_part() {
    assert_eq!(mimalloc_version(176), "1.7.6");
    assert_eq!(mimalloc_version(227), "2.2.7");
    assert_eq!(mimalloc_version(30_302), "3.3.2");
    assert_eq!(mimalloc_version(21_011), "2.10.11");
}

#[test]
fn version_ends_before_the_build() {
    let word = |text: &CStr| first_word(text.as_ptr());
    assert_eq!(word(c"5.3.0-0-g54eaed1d8b56b1aa"), "5.3.0");
    assert_eq!(word(c"gperftools 2.10"), "gperftools");
    assert_eq!(word(c"2.36"), "2.36");
    assert_eq!(first_word(ptr::null()), "");
}
