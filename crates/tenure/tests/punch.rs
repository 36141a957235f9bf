//! release: holes punched into shared memory and shared files.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};

use common::*;
use tenure::{Error, LockMode, Mapping, MemfdPages, MemoryKind, PageRange, page_size};

tests!(
    punched_shared_memory_is_absent_and_reads_as_zeros,
    punched_file_has_hole_for_every_reader,
    hole_punched_in_child_is_seen_by_parent,
    punch_of_private_memory_is_rejected,
    punch_of_locked_memory_is_rejected,
    punch_of_read_only_memory_is_rejected,
    punch_of_range_with_hole_is_rejected,
    punch_of_empty_range_is_ok,
);

const MIB: usize = 1 << 20;

fn shared() -> [Mapping; 2] {
    [
        Mapping::shared_anonymous(40 * MIB),
        Mapping::memfd(40 * MIB, MemfdPages::Base),
    ]
    .map(|builder| builder.map().unwrap())
}

fn punched_shared_memory_is_absent_and_reads_as_zeros() {
    for mut memory in shared() {
        let range = memory.range();
        fill(range);
        let last = memory.len() - page_size();
        memory.punch(page_size()..last).unwrap();
        assert!(is_filled(pages(range, 0, 1)));
        assert!(is_filled(pages(range, range.pages() - 1, 1)));
        let hole = pages(range, 1, range.pages() - 2);
        assert_eq!(count_present(hole), 0);
        assert!(is_zero(hole));
        fill(hole);
        assert!(is_filled(range));
    }
}

fn punched_file_has_hole_for_every_reader() {
    let file = file(8 * MIB);
    let blocks = file.metadata().unwrap().blocks();
    let mut memory = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
    match memory.punch(..4 * MIB) {
        Ok(()) => {}
        // A file system without holes returns an error and changes nothing.
        Err(Error::Unsupported { .. }) => return,
        Err(error) => panic!("{error}"),
    }
    assert!(memory.as_slice()[..4 * MIB].iter().all(|&byte| byte == 0));
    let mut byte = [9];
    file.read_exact_at(&mut byte, 4 * MIB as u64 - 1).unwrap();
    assert_eq!(byte, [0]);
    file.read_exact_at(&mut byte, 4 * MIB as u64 + 5).unwrap();
    assert_eq!(byte, [((4 * MIB + 5) % 251) as u8]);
    let after = file.metadata().unwrap();
    assert_eq!(after.len(), 8 * MIB as u64);
    assert!(after.blocks() < blocks);
}

fn hole_punched_in_child_is_seen_by_parent() {
    let [mut memory, _] = shared();
    fill(memory.range());
    let status = fork(|| {
        memory.punch(..MIB).unwrap();
        0
    });
    assert_eq!(status, 0);
    assert!(is_zero(pages(memory.range(), 0, MIB / page_size())));
    assert!(is_filled(pages(memory.range(), MIB / page_size(), 1)));
}

fn punch_of_private_memory_is_rejected() {
    let file = file(MIB);
    for (builder, kind) in [
        (Mapping::anonymous(MIB), MemoryKind::PrivateAnonymous),
        (
            unsafe { Mapping::file(&file) }.private().read_write(),
            MemoryKind::PrivateFile,
        ),
    ] {
        let mut memory = builder.map().unwrap();
        fill(memory.range());
        let error = memory.punch(..).unwrap_err();
        assert!(
            matches!(error, Error::WrongKind { found, .. } if found == kind),
            "{error}"
        );
        assert!(is_filled(memory.range()));
    }
}

fn punch_of_locked_memory_is_rejected() {
    let mut memory = Mapping::shared_anonymous(4 * page_size()).map().unwrap();
    fill(memory.range());
    memory.lock(3 * page_size().., LockMode::OnFault).unwrap();
    let error = memory.punch(..).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(is_filled(memory.range()));
    memory.punch(..3 * page_size()).unwrap();
    assert!(is_zero(pages(memory.range(), 0, 3)));
}

fn punch_of_read_only_memory_is_rejected() {
    let file = file(MIB);
    let mut memory = unsafe { Mapping::file(&file) }.map().unwrap();
    let error = memory.punch(..).unwrap_err();
    assert!(matches!(error, Error::NoAccess { .. }), "{error}");
    assert_eq!(memory.as_slice()[250], 250);
}

fn punch_of_range_with_hole_is_rejected() {
    let [mut memory, _] = shared();
    fill(memory.range());
    let before = memory.range().pages() / 2;
    let hole = pages(memory.range(), before, 1);
    raw_unmap(hole);
    let error = memory.punch(..).unwrap_err();
    assert!(
        matches!(error, Error::Hole { hole: at, .. } if at == hole),
        "{error}"
    );
    assert!(is_filled(pages(memory.range(), 0, before)));
}

fn punch_of_empty_range_is_ok() {
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.punch() }.unwrap();
    let [mut memory, _] = shared();
    fill(memory.range());
    memory.punch(0..0).unwrap();
    let error = memory.punch(1..page_size()).unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
    assert!(is_filled(memory.range()));
}
