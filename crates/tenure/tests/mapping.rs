//! Mappings of every kind, and the requests that the builder rejects.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::{Read, Seek, Write};

use common::*;
use libtest_mimic::Completion;
use tenure::{Access, Error, HugePages, Mapping, MemfdPages, MmapRequest, PageRange, page_size};

tests!(
    anonymous_mapping_is_zeroed_and_private,
    shared_mapping_written_in_child_is_seen_by_parent,
    memfd_written_in_child_is_seen_only_if_shared,
    [exclusive] hugetlb_memfd_maps_whole_huge_pages,
    hugetlb_memfd_beyond_pool_is_enomem,
    file_mapping_writes_reach_file_only_if_shared,
    file_mapping_with_offset_and_len_maps_that_part,
    mapping_len_is_kept_and_range_is_rounded,
    builder_options_set_vm_flags,
    huge_page_mapping_is_aligned_without_excess,
    wipe_on_fork_mapping_is_zero_in_child,
    no_dump_memfd_has_dontdump_flag,
    invalid_requests_return_distinct_errors,
    failed_map_leaves_nothing_mapped,
    mmap_request_applies_every_option,
    failed_mmap_request_leaves_nothing_mapped;
    children:
    map_for_huge_pages,
);

fn anonymous_mapping_is_zeroed_and_private() {
    let mut memory = Mapping::anonymous(3 * page_size()).map().unwrap();
    assert!(memory.as_slice().iter().all(|&byte| byte == 0));
    memory.as_mut_slice().unwrap()[0] = 1;
    let status = fork(|| {
        let bytes = memory.as_mut_slice().unwrap();
        assert_eq!(bytes[0], 1);
        bytes[0] = 2;
        0
    });
    assert_eq!((status, memory.as_slice()[0]), (0, 1));
}

fn shared_mapping_written_in_child_is_seen_by_parent() {
    let mut memory = Mapping::shared_anonymous(page_size()).map().unwrap();
    let status = fork(|| {
        memory.as_mut_slice().unwrap()[7] = 3;
        0
    });
    assert_eq!((status, memory.as_slice()[7]), (0, 3));
}

fn memfd_written_in_child_is_seen_only_if_shared() {
    for (builder, seen) in [
        (Mapping::memfd(page_size(), MemfdPages::Base), 3),
        (Mapping::memfd(page_size(), MemfdPages::Base).private(), 0),
    ] {
        let mut memory = builder.map().unwrap();
        let status = fork(|| {
            memory.as_mut_slice().unwrap()[7] = 3;
            0
        });
        assert_eq!((status, memory.as_slice()[7]), (0, seen));
    }
}

fn hugetlb_memfd_maps_whole_huge_pages() -> Completion {
    let Some(_pool) = HugePool::of(2) else {
        return skip("needs 2 free huge pages of 2 MiB (vm.nr_hugepages), or root to ask for them");
    };
    let mut memory = Mapping::memfd((2 << 20) + 1, MemfdPages::Huge2M)
        .map()
        .unwrap();
    assert_eq!(memory.range().len(), 4 << 20);
    assert_eq!(memory.len(), (2 << 20) + 1);
    assert!(has_vm_flag(memory.range(), "ht"));
    memory.populate(.., Access::Write).unwrap();
    memory.as_mut_slice().unwrap()[2 << 20] = 1;
    Completion::Completed
}

fn hugetlb_memfd_beyond_pool_is_enomem() {
    // The pool of no machine is as large.
    let error = Mapping::memfd(1 << 46, MemfdPages::Huge2M)
        .map()
        .unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
}

fn file_mapping_writes_reach_file_only_if_shared() {
    let mut file = file(page_size() + 100);
    {
        let mut memory = unsafe { Mapping::file(&file) }.map().unwrap();
        assert_eq!(memory.len(), page_size() + 100);
        assert_eq!(memory.as_slice()[300], (300 % 251) as u8);
        assert!(matches!(
            memory.as_mut_slice(),
            Err(Error::NoAccess {
                missing: "write",
                ..
            })
        ));
    }
    {
        let mut memory = unsafe { Mapping::file(&file) }
            .private()
            .read_write()
            .map()
            .unwrap();
        memory.as_mut_slice().unwrap()[0] = 0xee;
    }
    {
        let mut memory = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
        assert_eq!(memory.as_slice()[0], 0);
        memory.as_mut_slice().unwrap()[0] = 0xff;
    }
    let mut first = [0];
    file.rewind().unwrap();
    file.read_exact(&mut first).unwrap();
    assert_eq!(first, [0xff]);
}

fn file_mapping_with_offset_and_len_maps_that_part() {
    let file = file(4 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .offset(page_size() as u64)
        .len(10)
        .map()
        .unwrap();
    assert_eq!(memory.len(), 10);
    assert_eq!(memory.as_slice()[0], (page_size() % 251) as u8);
    let rest = unsafe { Mapping::file(&file) }
        .offset(3 * page_size() as u64)
        .map()
        .unwrap();
    assert_eq!(rest.len(), page_size());
}

fn mapping_len_is_kept_and_range_is_rounded() {
    let memory = Mapping::anonymous(1).map().unwrap();
    assert_eq!((memory.len(), memory.range().len()), (1, page_size()));
    assert_eq!(memory.as_slice(), [0]);
}

fn builder_options_set_vm_flags() {
    let memory = || Mapping::anonymous(4 << 20);
    for (builder, flag) in [
        (memory().huge_pages(HugePages::Always), "hg"),
        (memory().huge_pages(HugePages::Never), "nh"),
        (memory().no_dump(), "dd"),
        (memory().wipe_on_fork(), "wf"),
    ] {
        let with = builder.map().unwrap();
        assert!(has_vm_flag(with.range(), flag), "{flag}");
        let without = memory().map().unwrap();
        assert!(!has_vm_flag(without.range(), flag), "{flag}");
    }
}

/// Checks the alignment also where the kernel would begin elsewhere.
fn huge_page_mapping_is_aligned_without_excess() {
    in_child_ok("map_for_huge_pages");
}

/// Runs in a process without other threads, whose allocator would reserve addresses.
fn map_for_huge_pages() {
    const HUGE: usize = 2 << 20;
    // The page of counters stays mapped.
    tenure::stats();
    let size_kib = status_kib("VmSize");
    let builders: [fn(usize) -> _; 2] = [Mapping::anonymous, Mapping::shared_anonymous];
    for make in builders {
        for len in [HUGE, 2 * HUGE + page_size(), 5 * HUGE - 1] {
            let memory = make(len).huge_pages(HugePages::Always).map().unwrap();
            if page_size() == 4096 {
                assert_eq!(memory.range().start() % HUGE, 0, "{len}");
            }
            // Addresses mapped for the alignment are unmapped.
            let taken_kib = status_kib("VmSize") - size_kib;
            assert_eq!(taken_kib as usize, memory.range().len() / 1024);
            memory.munmap_sync().unwrap();
        }
    }
}

fn wipe_on_fork_mapping_is_zero_in_child() {
    let memory = Mapping::anonymous(page_size())
        .wipe_on_fork()
        .map()
        .unwrap();
    fill(memory.range());
    let status = fork(|| i32::from(!is_zero(memory.range())));
    assert_eq!(status, 0);
    assert!(is_filled(memory.range()));
}

fn no_dump_memfd_has_dontdump_flag() {
    let memory = Mapping::memfd(page_size(), MemfdPages::Base)
        .no_dump()
        .map()
        .unwrap();
    assert!(has_vm_flag(memory.range(), "dd"));
}

fn invalid_requests_return_distinct_errors() {
    assert_eq!(
        Mapping::anonymous(0).map().unwrap_err(),
        Error::EmptyMapping
    );
    let empty = tempfile::tempfile().unwrap();
    assert_eq!(
        unsafe { Mapping::file(&empty) }.map().unwrap_err(),
        Error::EmptyMapping
    );
    assert!(matches!(
        Mapping::anonymous(usize::MAX).map().unwrap_err(),
        Error::Overflow { .. }
    ));
    let file = file(4 * page_size());
    assert!(matches!(
        unsafe { Mapping::file(&file) }.offset(1).map().unwrap_err(),
        Error::Unaligned { .. }
    ));
    assert_eq!(
        unsafe { Mapping::file(&file) }
            .offset(4 * page_size() as u64)
            .map()
            .unwrap_err(),
        Error::EmptyMapping
    );

    let mut named = tempfile::NamedTempFile::new().unwrap();
    named.write_all(b"contents").unwrap();
    let read_only = std::fs::File::open(named.path()).unwrap();
    let error = unsafe { Mapping::file(&read_only) }
        .read_write()
        .map()
        .unwrap_err();
    assert_eq!(error.errno(), libc::EACCES, "{error}");
    unsafe { Mapping::file(&read_only) }
        .private()
        .read_write()
        .map()
        .unwrap();

    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().0));
    let error = unsafe { Mapping::file(&pipe) }.len(1).map().unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV, "{error}");
}

fn failed_map_leaves_nothing_mapped() {
    // Each worker that starts maps memory for itself.
    tenure::release::ReleaseLimits::default()
        .max_active(1)
        .set();
    let mapped_kib = || {
        let refused = Mapping::shared_anonymous(64 << 20).wipe_on_fork().map();
        let error = refused.unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        tenure::drain(None).unwrap();
        status_kib("VmSize")
    };
    // The first call starts a thread, for which the allocator reserves memory.
    let before = mapped_kib();
    assert_eq!(mapped_kib(), before);
}

fn mmap_request_applies_every_option() {
    let request = MmapRequest {
        len: 3 * page_size() - 1,
        prot: (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned(),
        flags: (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned(),
        no_dump: true,
        wipe_on_fork: true,
        populate: Some(Access::Write),
        ..MmapRequest::default()
    };
    let range = PageRange::mmap(&request).unwrap();
    assert_eq!(range.pages(), 3);
    assert_eq!(count_present(range), 3);
    unsafe { range.as_ptr().write(1) };
    let status = fork(|| i32::from(unsafe { range.as_ptr().read() }));
    assert_eq!(status, 0);
    unsafe { range.munmap() }.unwrap();
}

fn failed_mmap_request_leaves_nothing_mapped() {
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS).cast_unsigned();
    let request = MmapRequest {
        len: 64 << 20,
        prot: 3,
        flags,
        // MADV_WIPEONFORK fails on shared memory.
        wipe_on_fork: true,
        ..MmapRequest::default()
    };
    let mapped_kib = || {
        let error = PageRange::mmap(&request).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        tenure::drain(None).unwrap();
        status_kib("VmSize")
    };
    // The first call starts a thread, for which the allocator reserves memory.
    tenure::release::ReleaseLimits::default()
        .max_active(1)
        .set();
    let before = mapped_kib();
    assert_eq!(mapped_kib(), before);
    let fixed = MmapRequest {
        flags: flags | libc::MAP_FIXED.cast_unsigned(),
        ..request
    };
    assert_eq!(PageRange::mmap(&fixed).unwrap_err().errno(), libc::EINVAL);
    let empty = MmapRequest { len: 0, ..request };
    assert_eq!(PageRange::mmap(&empty).unwrap_err(), Error::EmptyMapping);
}
