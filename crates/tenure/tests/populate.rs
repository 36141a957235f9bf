//! populate: which pages become present, and which requests are rejected.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs::File;

use common::volatile::minor_faults;
use common::*;
use rustix::mm::MprotectFlags;
use tenure::{Access, Error, HugePages, Mapping, MemfdPages, MemoryKind, PageRange, page_size};

tests!(
    populate_write_makes_every_page_present,
    first_write_after_populate_write_takes_no_page_fault,
    populate_keeps_contents,
    populate_read_of_anonymous_memory_maps_zero_page,
    populate_of_every_memory_kind_makes_pages_present,
    populate_read_of_file_dirties_nothing,
    populate_of_part_leaves_the_rest_absent,
    populate_bounds_round_outward,
    populate_across_chunks_and_mappings_is_complete,
    populate_of_empty_range_is_ok,
    populate_of_range_with_hole_changes_nothing,
    populate_without_access_names_missing_access,
    populate_past_end_of_file_is_no_backing,
    populate_of_special_mapping_is_rejected,
);

fn populate_write_makes_every_page_present() {
    let memory = anonymous(300);
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 300);
    assert!(is_zero(memory.range()));
}

/// The zero page and the pages of the page cache are present, too, but not writable.
fn first_write_after_populate_write_takes_no_page_fault() {
    let len = 256 * page_size();
    for memory in [
        Mapping::anonymous(len).huge_pages(HugePages::Never),
        Mapping::shared_anonymous(len),
        Mapping::shared_anonymous(len).private(),
        Mapping::memfd(len, MemfdPages::Base),
        Mapping::memfd(len, MemfdPages::Base).private(),
    ] {
        let memory = memory.map().unwrap();
        memory.populate(.., Access::Write).unwrap();
        let before = minor_faults();
        for at in (0..len).step_by(page_size()) {
            unsafe { memory.range().as_ptr().add(at).write_volatile(1) };
        }
        // Each page would fault. A few may: the kernel migrates pages at any time.
        let faults = minor_faults() - before;
        assert!(faults < 32, "{faults} faults in {memory:?}");
    }
}

fn populate_keeps_contents() {
    let memory = anonymous(100);
    fill(memory.range());
    memory.populate(.., Access::Write).unwrap();
    memory.populate(.., Access::Read).unwrap();
    assert!(is_filled(memory.range()));
}

fn populate_read_of_anonymous_memory_maps_zero_page() {
    let memory = anonymous(300);
    memory.populate(.., Access::Read).unwrap();
    assert_eq!(count_present(memory.range()), 300);
    assert_eq!(smaps_bytes(memory.range(), "Rss"), 0);
}

fn populate_of_every_memory_kind_makes_pages_present() {
    let len = 64 * page_size();
    for access in [Access::Read, Access::Write] {
        for memory in [
            Mapping::shared_anonymous(len),
            Mapping::shared_anonymous(len).private(),
            Mapping::memfd(len, MemfdPages::Base),
            Mapping::memfd(len, MemfdPages::Base).private(),
        ] {
            let memory = memory.map().unwrap();
            memory.populate(.., access).unwrap();
            assert_eq!(count_present(memory.range()), 64, "{memory:?} {access:?}");
            assert!(is_zero(memory.range()));
        }
    }
}

fn populate_read_of_file_dirties_nothing() {
    let file = file(64 * page_size());
    file.sync_all().unwrap();
    let memory = unsafe { Mapping::file(&file) }.map().unwrap();
    let populate = || memory.populate(.., Access::Read).unwrap();
    populate();
    assert!(is_populated(memory.range(), populate));
    assert_eq!(memory.as_slice()[1000], (1000 % 251) as u8);
    for line in ["Shared_Dirty", "Private_Dirty"] {
        assert_eq!(smaps_bytes(memory.range(), line), 0, "{line}");
    }
}

fn populate_of_part_leaves_the_rest_absent() {
    let memory = anonymous(30);
    memory
        .populate(10 * page_size()..20 * page_size(), Access::Write)
        .unwrap();
    let expected: Vec<bool> = (0..30).map(|page| (10..20).contains(&page)).collect();
    assert_eq!(present(memory.range()), expected);
}

fn populate_bounds_round_outward() {
    let memory = anonymous(4);
    memory
        .populate(page_size()..page_size() + 1, Access::Write)
        .unwrap();
    assert_eq!(present(memory.range()), [false, true, false, false]);
    let covering = PageRange::covering(pages(memory.range(), 2, 1).start(), 1).unwrap();
    unsafe { covering.populate(Access::Write) }.unwrap();
    assert_eq!(present(memory.range()), [false, true, true, false]);
    let error = memory
        .populate(page_size() + 1.., Access::Write)
        .unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
    let error = memory.populate(..=memory.len(), Access::Write).unwrap_err();
    assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
}

fn populate_across_chunks_and_mappings_is_complete() {
    let page_count = (160 << 20) / page_size();
    let memory = anonymous(page_count);
    // The kernel has three mappings: the middle one is not dumped.
    let middle = pages(memory.range(), page_count / 3, page_count / 3);
    unsafe {
        rustix::mm::madvise(
            middle.as_ptr().cast(),
            middle.len(),
            rustix::mm::Advice::LinuxDontDump,
        )
    }
    .unwrap();
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), page_count);
}

fn populate_of_empty_range_is_ok() {
    let memory = anonymous(1);
    memory.populate(0..0, Access::Write).unwrap();
    memory.populate(page_size().., Access::Read).unwrap();
    assert_eq!(count_present(memory.range()), 0);
    // An empty range succeeds even where nothing is mapped.
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.populate(Access::Write) }.unwrap();
}

fn populate_of_range_with_hole_changes_nothing() {
    let memory = anonymous(30);
    let hole = pages(memory.range(), 20, 2);
    raw_unmap(hole);
    let error = memory.populate(.., Access::Write).unwrap_err();
    assert_eq!(
        error,
        Error::Hole {
            range: memory.range(),
            hole
        }
    );
    assert_eq!(error.errno(), libc::ENOMEM);
    assert_eq!(count_present(pages(memory.range(), 0, 20)), 0);
}

fn populate_without_access_names_missing_access() {
    let memory = anonymous(30);
    let part = pages(memory.range(), 20, 10);
    raw_protect(part, MprotectFlags::READ);
    let error = memory.populate(.., Access::Write).unwrap_err();
    assert!(
        matches!(error, Error::NoAccess { part: at, missing: "write", .. } if at == part),
        "{error}"
    );
    assert_eq!(count_present(memory.range()), 0);
    memory.populate(.., Access::Read).unwrap();
    raw_protect(part, MprotectFlags::empty());
    let error = memory.populate(.., Access::Read).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoAccess {
                missing: "read",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.errno(), libc::EACCES);
}

fn populate_past_end_of_file_is_no_backing() {
    let file: File = file(2 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .len(8 * page_size())
        .map()
        .unwrap();
    let error = memory.populate(.., Access::Read).unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    assert_eq!(error.errno(), libc::EFAULT);
}

fn populate_of_special_mapping_is_rejected() {
    let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
    let vvar = maps
        .iter()
        .find(|map| map.pathname == procfs::process::MMapPath::Vvar)
        .expect("[vvar]");
    let range = PageRange::new(
        vvar.address.0 as usize,
        (vvar.address.1 - vvar.address.0) as usize,
    )
    .unwrap();
    let error = unsafe { range.populate(Access::Read) }.unwrap_err();
    assert!(
        matches!(
            error,
            Error::WrongKind {
                found: MemoryKind::Special,
                ..
            }
        ),
        "{error}"
    );
}
