//! populate, with each of its strategies.

use tenure::{
    Access, Mapping, MemfdPages, page_size,
    populate::{PopulateOptions, Strategy},
};

use super::super::case::{Case, again};
use super::super::common::{count_present, fill, is_filled, is_zero, pages};
use super::{Between, Group};

pub const ALL: Group = &[
    ("populate_write", |case| anonymous(case, Access::Write)),
    ("populate_read", |case| anonymous(case, Access::Read)),
    ("populate_filled", filled),
    ("populate_by_touching_to_read", |case| {
        by(case, Access::Read, Strategy::Touch)
    }),
    ("populate_by_touching_to_write", |case| {
        by(case, Access::Write, Strategy::Touch)
    }),
    ("populate_read_then_write", |case| {
        by(case, Access::Write, Strategy::ReadThenWrite)
    }),
    ("populate_allocated", allocated),
    ("populate_memfd", memfd),
    ("populate_file", |case| file(case, Strategy::Auto)),
    ("populate_file_ahead", |case| {
        file(case, Strategy::ReadAheadThenPopulate)
    }),
    ("populate_threads", threads),
    ("populate_in_background", background),
];

fn anonymous(case: &Case, access: Access) {
    let memory = super::super::common::anonymous(300);
    case.attempt_twice(|| memory.populate(.., access));
    assert_eq!(count_present(memory.range()), 300);
    assert!(is_zero(memory.range()));
}

/// Checks that contents stay, whatever fails.
fn filled(case: &Case) {
    let memory = Between::new(100);
    let again = || memory.whole.populate(.., Access::Write);
    case.attempt_twice(again);
    assert!(memory.is_intact());
}

fn by(case: &Case, access: Access, strategy: Strategy) {
    let memory = super::super::common::anonymous(60);
    let some = pages(memory.range(), 2, 5);
    fill(some);
    let options = PopulateOptions::new(access).strategy(strategy);
    case.attempt_twice(|| memory.populate_with(.., &options));
    assert!(is_filled(some));
    assert_eq!(count_present(memory.range()), 60);
}

fn allocated(case: &Case) {
    let memory = Mapping::memfd(1 << 20, MemfdPages::Base).map().unwrap();
    let options = PopulateOptions::new(Access::Write).strategy(Strategy::AllocateThenPopulate);
    case.attempt_twice(|| memory.populate_with(.., &options));
    assert!(is_zero(memory.range()));
    assert_eq!(count_present(memory.range()), memory.range().pages());
}

fn memfd(case: &Case) {
    let memory = Mapping::memfd(1 << 20, MemfdPages::Base).map().unwrap();
    case.attempt_twice(|| memory.populate(.., Access::Write));
    assert_eq!(count_present(memory.range()), memory.range().pages());
}

fn file(case: &Case, strategy: Strategy) {
    let file = super::super::common::file(256 << 10);
    let memory = unsafe { Mapping::file(&file) }.map().unwrap();
    let options = PopulateOptions::new(Access::Read).strategy(strategy);
    case.attempt_twice(|| memory.populate_with(.., &options));
    for (index, &byte) in memory.as_slice().iter().enumerate() {
        assert_eq!(usize::from(byte), index % 251);
    }
}

fn threads(case: &Case) {
    let memory = super::super::common::anonymous((4 << 20) / page_size());
    let options = PopulateOptions::new(Access::Write)
        .threads(3)
        .chunk_bytes(256 << 10);
    case.attempt_twice(|| memory.populate_with(.., &options));
    assert_eq!(count_present(memory.range()), memory.range().pages());
}

fn background(case: &Case) {
    let memory = Mapping::anonymous(2 << 20).map().unwrap();
    let options = PopulateOptions::new(Access::Write);
    let range = memory.range();
    let work = || {
        // SAFETY: the mapping outlives the wait.
        unsafe { range.populate_in_background(&options) }.and_then(|work| work.wait())
    };
    if case.attempt(work).is_err() {
        again(work());
    }
    assert_eq!(count_present(range), range.pages());
}
