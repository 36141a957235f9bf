use rustix::mm::Advice;

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn memory_that_is_still_there_fails_the_checks() {
    let (mut blocks, before) = Before::fill(Owner::Raw, 2, 32 * MIB, Pages::Base).unwrap();
    before.check_unmapped().unwrap_err();
    check_zero(&blocks[1]).unwrap_err();
    blocks[1]
        .advise(0..32 * MIB, Advice::LinuxDontNeed)
        .unwrap();
    check_zero(&blocks[1]).unwrap();
}

#[test]
fn memory_that_is_not_freed_fails_the_check() {
    let before = Before {
        starts: Vec::new(),
        block_len: 0,
        resident_bytes: 0,
    };
    let _kept = Before::fill(Owner::Raw, 1, 64 * MIB, Pages::Base).unwrap();
    before.check_freed().unwrap_err();
}
