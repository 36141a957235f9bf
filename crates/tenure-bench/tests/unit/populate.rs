use std::fs;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use fastrand::Rng;
use tenure::Access;

use super::check::check;
use super::content::{Content, STRIPE};
use super::huge_pool::{HUGE_PAGE_BYTES, at};
use super::kind::Kind;
use super::work::Work;
use super::*;
use crate::alone::alone;
use crate::machine::restore::read_number;

const LEN: usize = 4 << 20;

fn check_error(populated: &mut Memory, work: &Work, blocks: Option<u64>) -> String {
    check(populated, work, blocks).unwrap_err().to_string()
}

fn auto(work: &Work) -> Memory {
    work.populate(&work.auto().1).unwrap()
}

#[test]
fn all_ways_pass_on_all_small_kinds() {
    alone(|| {
        let mut rng = Rng::with_seed(1);
        let file = Rc::new(Content::file(LEN, &mut rng).unwrap());
        let holes = Rc::new(Content::file_with_holes(LEN, &mut rng).unwrap());
        let memfd = |is_shared| Kind::Memfd(is_shared, None);
        let (read, write) = (Access::Read, Access::Write);
        let works = [
            Work::whole(Kind::PrivateBase, LEN, read),
            Work::middle_half(LEN, write),
            Work::whole(Kind::SharedAnonymous, LEN, write),
            Work::whole(memfd(false), LEN, write),
            Work::whole(memfd(true), LEN, read),
            Work::whole(Kind::ColdFile(file.clone()), LEN, read),
            Work::whole(Kind::WarmFile(file), LEN, read),
            Work::whole(Kind::FileWithHoles(holes.clone()), LEN, read),
            Work::whole(Kind::FileWithHoles(holes), LEN, write),
        ];
        for (index, work) in works.iter().enumerate() {
            let ways = [work.older_ways(), work.strategies().unwrap()];
            for (name, how) in ways.into_iter().flatten() {
                let blocks = work.kind.reset().unwrap();
                let checked = check(&mut work.populate(&how).unwrap(), work, blocks);
                checked.unwrap_or_else(|error| panic!("{index}, {name}: {error}"));
            }
        }
    });
}

#[test]
fn missing_and_surplus_pages_are_found() {
    alone(|| {
        let all = Work::whole(Kind::PrivateBase, LEN, Access::Write);
        let half = Work::middle_half(LEN, Access::Write);
        let error = check_error(&mut auto(&half), &all, None);
        let pages = LEN / page_size();
        let expected = format!("{} of {pages} pages", pages / 2);
        assert!(error.contains(&expected), "{error}");
        let error = check_error(&mut auto(&all), &half, None);
        let expected = format!("{} pages outside", pages / 4);
        assert!(error.contains(&expected), "{error}");
    });
}

#[test]
fn cost_of_reading_is_found() {
    alone(|| {
        let write = Work::whole(Kind::PrivateBase, LEN, Access::Write);
        let read = Work::whole(Kind::PrivateBase, LEN, Access::Read);
        let error = check_error(&mut auto(&write), &read, None);
        assert!(error.contains("took memory"), "{error}");

        let holes = Content::file_with_holes(LEN, &mut Rng::with_seed(1)).unwrap();
        let read = Work::whole(Kind::FileWithHoles(Rc::new(holes)), LEN, Access::Read);
        let error = check_error(&mut auto(&read), &read, Some(0));
        assert!(error.contains("after reading"), "{error}");
    });
}

#[test]
fn changed_contents_are_found() {
    alone(|| {
        let work = Work::whole(Kind::PrivateBase, LEN, Access::Write);
        let mut populated = auto(&work);
        populated.bytes_mut().unwrap()[LEN - 1] = 1;
        let error = check_error(&mut populated, &work, None);
        assert!(error.contains("contents changed"), "{error}");
    });
}

#[test]
fn every_other_stripe_is_a_hole_and_can_be_one_again() {
    let len = 3 * STRIPE + page_size();
    let content = Content::file_with_holes(len, &mut Rng::with_seed(1)).unwrap();
    let pages = STRIPE / page_size();
    let first_bytes = |stripe: usize| &content.first_bytes[stripe * pages..][..pages];
    assert!(first_bytes(0).iter().any(|&byte| byte != 0));
    assert!(first_bytes(1).iter().all(|&byte| byte == 0));
    assert!(first_bytes(2).iter().any(|&byte| byte != 0));
    let before = content.blocks().unwrap();
    content.file.write_all_at(&[1], STRIPE as u64).unwrap();
    content.file.sync_all().unwrap();
    assert!(content.blocks().unwrap() > before);
    content.punch_holes().unwrap();
    assert_eq!(content.blocks().unwrap(), before);
}

/// Makes a pool in which two pages are reserved.
fn pool(count: &str, free: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("nr_hugepages", count);
    write("resv_hugepages", "2\n");
    match free {
        Some(free) => write("free_hugepages", free),
        // All pages of the pool are free, also those that are added.
        None => std::os::unix::fs::symlink("nr_hugepages", folder.path().join("free_hugepages"))
            .unwrap(),
    }
    folder
}

fn count(folder: &tempfile::TempDir) -> u64 {
    read_number(&folder.path().join("nr_hugepages")).unwrap()
}

#[test]
fn pool_with_free_pages_is_left_alone() {
    let folder = pool("9\n", Some("6\n"));
    let held = at(folder.path(), 4 * HUGE_PAGE_BYTES).unwrap();
    assert!(!held.is_raised());
    assert_eq!(count(&folder), 9);
}

#[test]
fn small_pool_is_enlarged_and_put_back() {
    let folder = pool("3\n", None);
    let held = at(folder.path(), 8 * HUGE_PAGE_BYTES).unwrap();
    assert!(held.is_raised());
    assert_eq!(count(&folder), 10);
    drop(held);
    assert_eq!(count(&folder), 3);
}

#[test]
fn kernel_that_finds_too_few_pages_is_an_error_and_put_back() {
    let folder = pool("5\n", Some("4\n"));
    let error = at(folder.path(), 8 * HUGE_PAGE_BYTES).err().unwrap();
    assert!(
        error.to_string().contains("only 4 MiB of 16 MiB"),
        "{error}"
    );
    assert_eq!(count(&folder), 5);
}

#[test]
fn missing_pool_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = at(folder.path(), HUGE_PAGE_BYTES).err().unwrap();
    assert!(
        error.to_string().contains("no huge pages of 2 MiB"),
        "{error}"
    );
}
