use std::{fs, mem, ptr};

use fastrand::Rng;

use super::handler::LockedOnTouch;
use super::mappings::peak;
use super::stream::Arrays;
use super::*;
use crate::fixture::sentences;
use crate::measure::{Headroom, once};

#[test]
fn every_way_finds_the_right_answer() {
    let settings = Settings {
        seed: 1,
        is_named: true,
        sizes: Sizes::Medium,
        headroom: Headroom::of_bytes(4 << 20),
    };
    let mut experiment = experiment(&settings).unwrap();
    let cases = once(&mut experiment);
    let all = cases.iter().find(|case| case.table.starts_with("All ways"));
    let names: Vec<_> = all
        .unwrap()
        .ways
        .iter()
        .map(|way| way.name.clone())
        .collect();
    assert_eq!(names.len(), 7);
    assert_eq!((&*names[0], &*names[6]), (ways::PLAIN, ways::TENURE));
    let text = sentences("lock", cases);
    assert!(text.contains(" with mlock of the whole"), "{text}");
    assert!(text.contains(" with a file locked on fault"), "{text}");
}

#[test]
fn page_cache_is_filled_and_emptied() {
    let data = Data::make(4 << 20, 1).unwrap();
    for warm in [Cache::Faulted, Cache::Read] {
        if data.can_be_cold {
            data.bring_cache_to(Cache::Cold).unwrap();
            assert!(!data.is_cached().unwrap());
        }
        data.bring_cache_to(warm).unwrap();
        assert!(data.is_cached().unwrap());
    }
}

#[test]
fn page_cache_that_lost_the_file_is_filled_again() {
    let data = Data::make(4 << 20, 1).unwrap();
    data.bring_cache_to(Cache::Read).unwrap();
    files::drop_from_cache(&data.file).unwrap();
    data.bring_cache_to(Cache::Read).unwrap();
    assert!(data.is_cached().unwrap());
}

fn reads(count: u64) -> Reads {
    let data = Data::make(4 << 20, 1).unwrap();
    Reads::choose(&Rc::new(data), count, 1).unwrap()
}

#[test]
fn wrong_sum_is_an_error() {
    let reads = reads(1_000);
    let mapping = reads.data.map().unwrap();
    // SAFETY: the whole file is mapped for reading.
    let sum = unsafe { reads.read(mapping.bytes().as_ptr(), |_| Ok(())) }.unwrap();
    reads.check(sum, None).unwrap();
    reads.check(sum + 1, None).unwrap_err();
}

#[test]
fn unlocked_page_is_an_error() {
    let page = page_size() as u64;
    let check = |count, locked| {
        let reads = reads(count);
        reads.check(reads.expected_sum, Some(locked))
    };
    check(1, page).unwrap();
    check(1, page - 1).unwrap_err();
    check(10, page).unwrap_err();
}

#[test]
fn scattered_pages_need_mappings_of_their_own() {
    assert_eq!(reads(0).mappings(1), 1);
    assert!(reads(100).mappings(1) > 150);
    assert!(reads(100).mappings(16) < 150);
}

/// The present action of SIGSEGV.
fn action() -> usize {
    // SAFETY: zeroes are a valid sigaction, and the call only asks.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &mut action);
        action.sa_sigaction
    }
}

#[test]
fn touched_page_becomes_readable_and_the_handler_is_removed() {
    let page = tenure::page_size();
    let file = files::random_file(8 * page, &mut Rng::with_seed(1)).unwrap();
    // SAFETY: the file is ours alone.
    let mapping = unsafe { files::map_for_reading(&file, 8 * page) }.unwrap();
    let expected = mapping.bytes()[5 * page + 1];
    let before = action();
    let guarded = LockedOnTouch::new(mapping, 2 * page).unwrap();
    assert_ne!(action(), before);
    // SAFETY: inside the mapping; the handler admits the page.
    let read = unsafe { guarded.as_ptr().add(5 * page + 1).read_volatile() };
    assert_eq!(read, expected);
    guarded.check().unwrap();
    drop(guarded);
    assert_eq!(action(), before);
}

#[test]
fn peak_joins_neighbours_that_are_open() {
    let peak = |step, touched: &[usize]| peak(8, step, touched.iter().copied());
    // In the end there are 1 + 2 for each page that lies apart; 2 more come and go.
    assert_eq!(peak(1, &[]), 1);
    assert_eq!(peak(1, &[3]), 3 + 2);
    assert_eq!(peak(1, &[3, 3]), 3 + 2);
    assert_eq!(peak(1, &[3, 5]), 5 + 2);
    assert_eq!(peak(1, &[3, 4, 5]), 3 + 2);
    assert_eq!(peak(1, &[0]), 2 + 2, "no neighbour before it");
    assert_eq!(peak(1, &[3, 5, 4]), 5 + 2, "the peak counts, not the end");
    assert_eq!(peak(8, &[0]), 1 + 9);
    assert_eq!(peak(4, &[6, 5]), 2 + 5, "up to the end of the range");
}

fn headroom(
    text: &str,
    needs: &[(&'static str, u64)],
) -> (tempfile::NamedTempFile, MappingHeadroom) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let headroom = MappingHeadroom::at(file.path(), 100, needs.to_vec()).unwrap();
    (file, headroom)
}

#[test]
fn sufficient_limit_is_left_alone() {
    let (_file, headroom) = headroom("65530\n", &[("each", 65_430)]);
    assert!(headroom.lets_finish("each") && headroom.notes().is_empty());
}

#[test]
fn low_limit_is_raised_and_put_back() {
    let (file, headroom) = headroom("65530\n", &[("few", 7), ("each", 65_431)]);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "65531");
    assert!(headroom.lets_finish("each"));
    assert_eq!(
        headroom.notes(),
        ["vm.max_map_count was raised to 65,531 for the run."]
    );
    drop(headroom);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "65530\n");
}

#[test]
fn ways_that_cannot_finish_are_noted_with_the_remedy() {
    let (_file, mut headroom) = headroom("65530\n", &[]);
    headroom.needs = vec![("small", 65_430), ("each", 99_900), ("handler", 99_000)];
    let can_finish = ["small", "each", "handler", "plain"].map(|name| headroom.lets_finish(name));
    assert_eq!(can_finish, [true, false, false, true]);
    assert_eq!(
        headroom.notes(),
        [
            "Cannot finish and are left out: each; handler. vm.max_map_count is 65,530, up to \
             100,000 mappings are needed, and only root may raise it (sysctl -w \
             vm.max_map_count=100000)."
        ]
    );
}

#[test]
fn peak_is_what_the_kernel_reaches() {
    let (pages, touched) = (32, [3, 9, 4, 20, 31, 8, 0]);
    let page = page_size();
    let file = files::random_file(pages * page, &mut fastrand::Rng::with_seed(1)).unwrap();
    // SAFETY: the file is ours alone.
    let mapping = unsafe { files::map_for_reading(&file, pages * page) }.unwrap();
    let (start, end) = (mapping.start(), mapping.start() + pages * page);
    let guarded = LockedOnTouch::new(mapping, 2 * page).unwrap();
    let mut most = 0;
    for &index in &touched {
        // SAFETY: inside the mapping; the handler admits the page.
        unsafe { guarded.as_ptr().add(index * page).read_volatile() };
        let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
        let is_part = |map: &&procfs::process::MemoryMap| {
            map.address.0 >= start as u64 && map.address.1 <= end as u64
        };
        most = most.max(maps.iter().filter(is_part).count());
    }
    guarded.check().unwrap();
    let reserve = 3;
    assert_eq!(peak(pages, 2, touched.into_iter()), most as u64 + reserve);
}

#[test]
fn kernel_has_the_setting() {
    let headroom = MappingHeadroom::make(vec![("few", 1)]).unwrap();
    assert!(headroom.lets_finish("few"));
}

#[test]
fn one_run_makes_the_numbers_expected() {
    let mut arrays = Arrays::new(1000);
    arrays.reset();
    arrays.check().unwrap_err();
    arrays.run();
    arrays.check().unwrap();
    assert_eq!(arrays.0.each_ref().map(|array| array[7]), [15.0, 3.0, 4.0]);
    assert_eq!(arrays.traffic_bytes(), 80_000);
    arrays.0[1][999] += 1.0;
    arrays.check().unwrap_err();
}
