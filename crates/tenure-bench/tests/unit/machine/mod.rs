use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, thread};

use fastrand::Rng;
use rustix::mm::Advice;
use tenure::page_size;

use super::clock::MonotonicClock;
use super::clock::mock::MockClock;
use super::files::{map_for_reading, random_file, sum};
use super::group::Group;
use super::kernel::{self, is_mapped};
use super::memory::RawMapping;
use super::probe::{self, longest_wait, longest_waits};
use super::touch::{bring_in, read_and_write_each_page, write_each_page};

#[test]
fn random_file_depends_on_its_seed_alone() {
    let len = 3 * tenure::page_size() + (1 << 20);
    let sum_of = |seed| {
        let file = random_file(len, &mut Rng::with_seed(seed)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), len as u64);
        // SAFETY: the file is ours alone.
        sum(unsafe { map_for_reading(&file, len) }.unwrap().bytes())
    };
    assert_eq!(sum_of(1), sum_of(1));
    assert_ne!(sum_of(1), sum_of(2));
}

#[test]
fn sum_changes_with_a_byte() {
    let mut bytes = vec![3; 64];
    let before = sum(&bytes);
    bytes[40] = 4;
    assert_ne!(sum(&bytes), before);
}

#[test]
fn group_has_its_limit_and_is_removed_when_dropped() {
    let group = match Group::with_limit(64 << 20) {
        Ok(group) => group,
        Err(why) => return eprintln!("skipped: {why:#}"),
    };
    let path = group.path().to_owned();
    let limit = ["memory.limit_in_bytes", "memory.max"]
        .into_iter()
        .find_map(|name| fs::read_to_string(path.join(name)).ok());
    assert_eq!(limit.unwrap().trim(), (64 << 20).to_string());
    assert_eq!(group.charged_bytes().unwrap(), 0);
    drop(group);
    assert!(!path.exists());
}

#[test]
fn dropped_mapping_is_unmapped() {
    let mapping = RawMapping::base_pages(16 * tenure::page_size()).unwrap();
    let start = mapping.start();
    assert!(is_mapped(start).unwrap());
    drop(mapping);
    assert!(!is_mapped(start).unwrap());
}

#[test]
fn discarded_memory_reads_zero() {
    let mut mapping = RawMapping::base_pages(4 * tenure::page_size()).unwrap();
    mapping.bytes_mut().fill(7);
    mapping.advise(Advice::LinuxDontNeed).unwrap();
    assert!(mapping.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn longest_wait_returns_the_answer_of_the_work() {
    let (answer, _) = longest_wait(&MockClock::default(), 65536, || 42).unwrap();
    assert_eq!(answer, 42);
}

#[test]
fn longest_wait_is_more_than_nothing() {
    let (_, longest) = longest_wait(&MonotonicClock::start(), 65536, || ()).unwrap();
    assert!(longest > 0.0);
}

#[test]
fn bring_in_maps_all_pages_and_keeps_zeros() {
    let mut mapping = RawMapping::base_pages(33 * page_size()).unwrap();
    bring_in(mapping.bytes_mut()).unwrap();
    kernel::check_all_present(mapping.bytes()).unwrap();
    assert!(mapping.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn touching_maps_pages_and_keeps_contents() {
    let page = page_size();
    let mut mapping = RawMapping::base_pages(5 * page).unwrap();
    let bytes = mapping.bytes_mut();
    bytes[2 * page] = 9;
    write_each_page(bytes, |index| if index == 2 { 9 } else { 0 });
    read_and_write_each_page(bytes);
    kernel::check_all_present(bytes).unwrap();
    assert_eq!(bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 9);
}

#[test]
fn prepared_probe_leaves_out_the_preparation() {
    let clock = Arc::new(MockClock::default());
    let (before, meanwhile) = (clock.clone(), clock.clone());
    let pass = |clock: &MockClock, milliseconds| {
        clock.pass(milliseconds);
        Ok(())
    };
    let prepare = move || pass(&before, 100);
    let mut probe = probe::prepared(prepare, move |()| pass(&meanwhile, 3));
    assert_eq!(probe(&*clock).unwrap().as_millis(), 3);
}

#[test]
fn longest_waits_of_several_probes_are_in_their_order() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let quick = probe::of(|| Ok(()));
    let failing = probe::of(|| match CALLS.fetch_add(1, Relaxed) {
        0 => Ok(()),
        _ => anyhow::bail!("a probe that fails"),
    });
    let clock = MonotonicClock::start();
    let slow = probe::of(|| {
        thread::sleep(Duration::from_millis(2));
        Ok(())
    });
    let (answer, waits) = longest_waits(&clock, &mut [quick, slow], || 7).unwrap();
    assert_eq!((answer, waits.len()), (7, 2));
    assert!(waits[1] >= 0.002);
    let until_it_fails = || while CALLS.load(Relaxed) < 2 {};
    longest_waits(&clock, &mut [failing], until_it_fails).unwrap_err();
}
