//! residency: figures that are exact, and measurements that leave the memory unchanged.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::mappings::inaccessible;
use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Error, HugePages, LockMode, Mapping, MemfdPages, PageRange, Residency, page_size,
};

tests!(
    residency_counts_each_page_by_its_state,
    residency_flushes_lazyfree_batch,
    residency_of_part_is_exact,
    residency_of_parts_adds_up_to_whole,
    residency_leaves_mappings_unchanged,
    concurrent_residency_and_forks_stay_exact,
    residency_of_no_dump_part_leaves_lazily_free_unknown,
    residency_at_map_count_limit_leaves_lazily_free_unknown,
    shared_pages_count_proportionally,
    residency_of_huge_pages_does_not_split_them,
    locked_bytes_match_memlock_charge,
    [exclusive] hugetlb_pages_are_counted_separately,
    [exclusive] swapped_pages_are_counted_and_are_no_holes,
    inaccessible_addresses_are_reserved_and_not_mapped,
    empty_and_unmapped_ranges_have_zero_residency,
    holes_list_absent_pages,
    holes_without_pagemap_scan_list_absent_pages,
    residency_of_part_without_pagemap_scan_is_exact,
    residency_of_other_process_matches_its_own,
    residency_of_process_without_first_thread_is_read,
    residency_of_process_with_a_cut_name_is_read,
    residency_of_other_users_process_is_permission_denied;
    children:
    reach_map_count_limit,
    check_holes,
    check_parts,
    hold_lazily_free_memory,
    hold_memory_without_first_thread,
    query_other_users_process,
);

const MIB: usize = 1 << 20;

/// Keeps this thread on one CPU, because pages in another CPU's batch are not counted yet.
fn stay_on_this_cpu() {
    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

fn bytes(pages: usize) -> usize {
    pages * page_size()
}

fn lazily_free(range: PageRange) -> usize {
    range.residency().unwrap().lazily_free_bytes.unwrap()
}

fn residency_counts_each_page_by_its_state() {
    stay_on_this_cpu();
    let memory = anonymous(512);
    let mut expected = memory.residency().unwrap();
    assert_eq!(expected.mapped_bytes, memory.range().len());
    assert_eq!(expected.resident_bytes, 0);
    assert_eq!(expected.resident_without_lazily_free_bytes(), Some(0));
    // The zero page belongs to no process.
    memory.populate(.., Access::Read).unwrap();
    assert_eq!(memory.residency().unwrap(), expected);

    memory.populate(..bytes(300), Access::Write).unwrap();
    expected.resident_bytes = bytes(300);
    expected.proportional_bytes = Some(bytes(300));
    assert_eq!(memory.residency().unwrap(), expected);

    unsafe { pages(memory.range(), 0, 200).lazy_free() }.unwrap();
    expected.lazily_free_bytes = Some(bytes(200));
    let residency = memory.residency().unwrap();
    assert_eq!(residency, expected);
    assert_eq!(
        residency.resident_without_lazily_free_bytes(),
        Some(bytes(100))
    );

    page_out_all(pages(memory.range(), 0, 200));
    expected.resident_bytes = bytes(100);
    expected.proportional_bytes = Some(bytes(100));
    expected.lazily_free_bytes = Some(0);
    assert_eq!(memory.residency().unwrap(), expected);
}

fn residency_flushes_lazyfree_batch() -> Completion {
    stay_on_this_cpu();
    let memory = anonymous(8);
    let range = memory.range();
    // Any process may have the kernel flush all batches (compaction does): then
    // the round shows nothing.
    let begun = Instant::now();
    let is_batched = std::iter::repeat_with(|| {
        fill(range);
        // madvise is called directly, because tenure flushes the kernel's batch.
        let advice = rustix::mm::Advice::LinuxFree;
        unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
        smaps_bytes(range, "LazyFree") == 0
    })
    .take_while(|_| begun.elapsed() < Duration::from_secs(20))
    .any(|is_batched| is_batched);
    if !is_batched {
        return skip("other processes flush the kernel's batches all the time");
    }
    assert_eq!(lazily_free(range), bytes(8));
    Completion::Completed
}

fn residency_of_part_is_exact() {
    stay_on_this_cpu();
    let memory = anonymous(512);
    let range = memory.range();
    fill(pages(range, 0, 400));
    unsafe { pages(range, 100, 200).lazy_free() }.unwrap();
    for (first, count, resident, free) in [
        (0, 512, 400, 200),
        (0, 100, 100, 0),
        (50, 100, 100, 50),
        (100, 200, 200, 200),
        (299, 2, 2, 1),
        (250, 250, 150, 50),
        (400, 112, 0, 0),
    ] {
        let part = pages(range, first, count).residency().unwrap();
        let found = (
            part.mapped_bytes,
            part.resident_bytes,
            part.proportional_bytes,
            part.lazily_free_bytes,
        );
        let expected = (
            bytes(count),
            bytes(resident),
            Some(bytes(resident)),
            Some(bytes(free)),
        );
        assert_eq!(found, expected, "{count} pages from {first}");
    }
}

fn residency_of_parts_adds_up_to_whole() {
    stay_on_this_cpu();
    let memory = anonymous(4096);
    let range = memory.range();
    fill(range);
    for first in (0..4096).step_by(64) {
        unsafe { pages(range, first, fastrand::usize(1..64)).lazy_free() }.unwrap();
    }
    let whole = range.residency().unwrap();
    for _ in 0..20 {
        let first = fastrand::usize(0..4096);
        let second = fastrand::usize(first..=4096);
        let bounds = [(0, first), (first, second), (second, 4096)];
        let parts = bounds.map(|(from, to)| pages(range, from, to - from).residency().unwrap());
        let sum = |figure: fn(&Residency) -> usize| parts.iter().map(figure).sum::<usize>();
        assert_eq!(sum(|part| part.resident_bytes), whole.resident_bytes);
        let free = sum(|part| part.lazily_free_bytes.unwrap());
        assert_eq!(Some(free), whole.lazily_free_bytes, "{bounds:?}");
    }
}

/// Counts the kernel's mappings of this process, and those in the range.
fn mappings(range: PageRange) -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let parse = |hex| usize::from_str_radix(hex, 16).unwrap();
        Some((parse(start), parse(end)))
    });
    let is_in = |&(start, end): &(usize, usize)| start < range.end() && end > range.start();
    (maps.lines().count(), bounds.filter(is_in).count())
}

fn residency_leaves_mappings_unchanged() {
    let memory = anonymous(512);
    fill(memory.range());
    unsafe { pages(memory.range(), 0, 256).lazy_free() }.unwrap();
    let (before, flags) = (mappings(memory.range()).1, vm_flags(memory.range()));
    for first in 0..100 {
        pages(memory.range(), first, 300).residency().unwrap();
    }
    assert_eq!(mappings(memory.range()).1, before);
    assert_eq!(vm_flags(memory.range()), flags);
    assert!(is_filled(pages(memory.range(), 256, 256)));
}

fn concurrent_residency_and_forks_stay_exact() {
    stay_on_this_cpu();
    let memory = anonymous(512);
    let range = memory.range();
    fill(range);
    unsafe { pages(range, 0, 256).lazy_free() }.unwrap();
    let free = lazily_free(pages(range, 128, 256));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in [0, 60, 128] {
            let is_over = &is_over;
            scope.spawn(move || {
                let part = pages(range, first, 384 - first);
                let expected = lazily_free(part);
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(lazily_free(part), expected);
                }
            });
        }
        let statuses =
            [(); 30].map(|()| fork(|| i32::from(has_vm_flag(pages(range, 130, 1), "dd"))));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(statuses, [0; 30], "a child keeps a part split off");
    });
    assert_eq!(lazily_free(pages(range, 128, 256)), free);
    assert!(!has_vm_flag(range, "dd"));
}

fn residency_of_no_dump_part_leaves_lazily_free_unknown() {
    stay_on_this_cpu();
    let memory = Mapping::anonymous(bytes(512))
        .huge_pages(HugePages::Never)
        .no_dump()
        .map()
        .unwrap();
    tag(memory.range());
    fill(memory.range());
    unsafe { pages(memory.range(), 0, 256).lazy_free() }.unwrap();
    let part = pages(memory.range(), 128, 256).residency().unwrap();
    assert_eq!(part.resident_bytes, bytes(256));
    assert_eq!(part.lazily_free_bytes, None);
    assert_eq!(part.resident_without_lazily_free_bytes(), None);
    assert_eq!(part.proportional_bytes, Some(bytes(256)));
    assert!(has_vm_flag(pages(memory.range(), 128, 256), "dd"));
    let whole = memory.residency().unwrap();
    assert_eq!(whole.lazily_free_bytes, Some(bytes(256)));
}

fn residency_at_map_count_limit_leaves_lazily_free_unknown() {
    in_child_ok("reach_map_count_limit");
}

fn reach_map_count_limit() {
    stay_on_this_cpu();
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit = limit.trim().parse::<usize>().unwrap();
    assert!(limit < 1 << 20, "vm.max_map_count is too high for a test");
    let memory = anonymous(512);
    fill(memory.range());
    unsafe { pages(memory.range(), 0, 256).lazy_free() }.unwrap();
    let many = inaccessible(2 * limit);
    let refused = (0..limit).any(|at| {
        let page = pages(many, 2 * at, 1);
        let flags = rustix::mm::MprotectFlags::READ;
        unsafe { rustix::mm::mprotect(page.as_ptr().cast(), page.len(), flags) }.is_err()
    });
    assert!(refused);
    // One more mapping is possible, where two are needed.
    let part = pages(memory.range(), 128, 256).residency().unwrap();
    assert_eq!(part.resident_bytes, bytes(256));
    assert_eq!(part.lazily_free_bytes, None);
    raw_protect(many, rustix::mm::MprotectFlags::READ);
    assert_eq!(lazily_free(pages(memory.range(), 128, 256)), bytes(128));
    assert!(!has_vm_flag(pages(memory.range(), 128, 1), "dd"));
    assert_eq!(mappings(memory.range()).1, 1);
}

fn shared_pages_count_proportionally() {
    stay_on_this_cpu();
    for builder in [
        Mapping::anonymous(bytes(512)).huge_pages(HugePages::Never),
        Mapping::shared_anonymous(bytes(512)),
    ] {
        let memory = builder.map().unwrap();
        tag(memory.range());
        fill(pages(memory.range(), 0, 100));
        // The child ends when the parent closes its end of the pipe, in whatever way.
        let (from_parent, to_child) = std::io::pipe().unwrap();
        let (mut from_child, to_parent) = std::io::pipe().unwrap();
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(to_child);
            // Shared memory is in no page table until it is touched.
            is_filled(pages(memory.range(), 0, 100));
            drop(to_parent);
            let _ = (&from_parent).read(&mut [0]);
            unsafe { libc::_exit(0) };
        }
        drop(to_parent);
        let _ = from_child.read(&mut [0]);
        let whole = memory.residency().unwrap();
        assert_eq!(whole.resident_bytes, bytes(100));
        assert_eq!(whole.proportional_bytes, Some(bytes(50)));
        // The child does not have these 20 pages in its page tables.
        fill(pages(memory.range(), 100, 20));
        let part = pages(memory.range(), 90, 30).residency().unwrap();
        assert_eq!(part.resident_bytes, bytes(30));
        assert_eq!(part.proportional_bytes, Some(bytes(25)));
        drop(to_child);
        assert_eq!(unsafe { libc::waitpid(pid, &mut 0, 0) }, pid);
        let whole = memory.residency().unwrap();
        assert_eq!(whole.proportional_bytes, Some(bytes(120)));
    }
}

fn residency_of_huge_pages_does_not_split_them() -> Completion {
    stay_on_this_cpu();
    const HUGE: usize = 2 * MIB;
    let memory = Mapping::anonymous(5 * HUGE)
        .huge_pages(HugePages::Always)
        .map()
        .unwrap();
    tag(memory.range());
    let start = memory.range().start().next_multiple_of(HUGE);
    let huge = PageRange::new(start, 4 * HUGE).unwrap();
    memory.populate(.., Access::Write).unwrap();
    let whole = huge.residency().unwrap();
    if whole.huge_page_bytes != Some(huge.len()) {
        return skip("the kernel gives no huge pages");
    }
    let per_huge = HUGE / page_size();
    // The first two are lazily free.
    unsafe { pages(huge, 0, 2 * per_huge).lazy_free() }.unwrap();
    assert_eq!(lazily_free(huge), 2 * HUGE);
    assert_eq!(lazily_free(pages(huge, per_huge, 2 * per_huge)), HUGE);
    // The part cuts a huge page at either end. Its rest outside is all of one kind
    // here, so that every figure is known,
    let part = pages(huge, per_huge / 2, 3 * per_huge).residency().unwrap();
    assert_eq!(part.resident_bytes, 3 * HUGE);
    if start == memory.range().start() {
        assert_eq!(part.lazily_free_bytes, Some(HUGE + HUGE / 2));
    }
    // and here it is not.
    let part = pages(huge, per_huge + per_huge / 2, per_huge)
        .residency()
        .unwrap();
    assert_eq!(part.resident_bytes, HUGE);
    assert_eq!(part.lazily_free_bytes, None);
    let whole = huge.residency().unwrap();
    assert_eq!(
        whole.huge_page_bytes,
        Some(huge.len()),
        "huge pages were split"
    );
    assert_eq!(whole.lazily_free_bytes, Some(2 * HUGE));
    Completion::Completed
}

fn locked_bytes_match_memlock_charge() {
    let memory = anonymous(64);
    let before = Residency::of_this_process().unwrap().locked_bytes;
    memory
        .lock(bytes(10)..bytes(20), LockMode::OnFault)
        .unwrap();
    fill(pages(memory.range(), 10, 2));
    let residency = memory.residency().unwrap();
    assert_eq!(residency.locked_bytes, bytes(10));
    assert_eq!(residency.resident_bytes, bytes(2));
    let part = pages(memory.range(), 0, 15).residency().unwrap();
    assert_eq!(part.locked_bytes, bytes(5));
    let after = Residency::of_this_process().unwrap().locked_bytes;
    assert_eq!(after - before, bytes(10));
}

fn hugetlb_pages_are_counted_separately() -> Completion {
    const HUGE: usize = 2 * MIB;
    let Some(_pool) = HugePool::of(2) else {
        return skip("no huge pages of 2 MiB can be allocated");
    };
    let before = Residency::of_this_process().unwrap();
    let memory = Mapping::memfd(2 * HUGE, MemfdPages::Huge2M).map().unwrap();
    memory.populate(..HUGE, Access::Write).unwrap();
    let residency = memory.residency().unwrap();
    assert_eq!(residency.hugetlb_bytes, HUGE);
    assert_eq!(residency.resident_bytes, 0);
    assert_eq!(residency.mapped_bytes, 2 * HUGE);
    let part = pages(memory.range(), 0, 10).residency().unwrap();
    assert_eq!((part.hugetlb_bytes, part.resident_bytes), (bytes(10), 0));
    assert_eq!(part.lazily_free_bytes, Some(0));
    let after = Residency::of_this_process().unwrap();
    assert_eq!(after.hugetlb_bytes - before.hugetlb_bytes, HUGE);
    Completion::Completed
}

fn swapped_pages_are_counted_and_are_no_holes() -> Completion {
    let _swap = match Swap::on() {
        Ok(swap) => swap,
        Err(error) => return skip(&format!("no swap can be made: {error}")),
    };
    let memory = anonymous(256);
    fill(memory.range());
    page_out_all(pages(memory.range(), 0, 128));
    let whole = memory.residency().unwrap();
    assert_eq!(whole.swapped_bytes, Some(bytes(128)));
    assert_eq!(whole.resident_bytes, bytes(128));
    let part = pages(memory.range(), 100, 100).residency().unwrap();
    assert_eq!(part.swapped_bytes, Some(bytes(28)));
    // Swapped pages are no holes.
    assert_eq!(memory.range().holes().unwrap(), []);
    Completion::Completed
}

fn inaccessible_addresses_are_reserved_and_not_mapped() {
    const RESERVED: usize = 1 << 40;
    let before = Residency::of_this_process().unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = unsafe { libc::mmap(null_mut(), RESERVED, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let range = PageRange::new(at.addr(), RESERVED).unwrap();
    let writable = pages(range, 16, 16);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let inside = at.wrapping_byte_add(bytes(16));
    assert_eq!(unsafe { libc::mprotect(inside, writable.len(), access) }, 0);

    let process = Residency::of_this_process().unwrap();
    let both = |residency: &Residency| (residency.mapped_bytes, residency.reserved_bytes);
    assert_eq!(
        both(&range.residency().unwrap()),
        (bytes(16), RESERVED - bytes(16))
    );
    let part = pages(range, 8, 16).residency().unwrap();
    assert_eq!(both(&part), (bytes(8), bytes(8)));
    unsafe { libc::munmap(at, RESERVED) };
    // Other threads map and unmap stacks and arenas.
    const SLACK: usize = 1 << 30;
    let (mapped, reserved) = both(&before);
    assert!(
        process.reserved_bytes.abs_diff(reserved + RESERVED) < SLACK,
        "{process:?}"
    );
    assert!(process.mapped_bytes.abs_diff(mapped) < SLACK, "{process:?}");
}

fn empty_and_unmapped_ranges_have_zero_residency() {
    let memory = anonymous(8);
    let nothing = pages(memory.range(), 3, 0);
    let residency = nothing.residency().unwrap();
    assert_eq!((residency.mapped_bytes, residency.resident_bytes), (0, 0));
    assert_eq!(nothing.holes().unwrap(), []);
    // Unmapped memory has no residency either: the lowest page is never mapped.
    let unmapped = PageRange::new(page_size(), page_size()).unwrap();
    assert_eq!(unmapped.residency().unwrap(), residency);
    assert_eq!(unmapped.holes().unwrap(), [unmapped]);
}

fn holes_list_absent_pages() {
    check_holes();
}

fn holes_without_pagemap_scan_list_absent_pages() {
    in_child_without("pagemap_scan", "check_holes");
}

fn check_holes() {
    let memory = anonymous(512);
    let range = memory.range();
    let hole = |first, count| pages(range, first, count);
    assert_eq!(range.holes().unwrap(), [range]);
    fill(pages(range, 10, 20));
    fill(pages(range, 40, 1));
    memory
        .populate(bytes(100)..bytes(101), Access::Read)
        .unwrap();
    let holes = [hole(0, 10), hole(30, 10), hole(41, 59), hole(101, 411)];
    assert_eq!(range.holes().unwrap(), holes);
    assert_eq!(pages(range, 5, 10).holes().unwrap(), [hole(5, 5)]);
    // Lazily freed pages that the kernel reclaims become holes.
    unsafe { pages(range, 12, 4).lazy_free() }.unwrap();
    assert_eq!(range.holes().unwrap(), holes);
    page_out_all(pages(range, 12, 4));
    assert_eq!(
        pages(range, 0, 30).holes().unwrap(),
        [hole(0, 10), hole(12, 4)]
    );
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(range.holes().unwrap(), []);
    // More than one call of the kernel covers: the pieces are joined.
    let large = inaccessible(200_000);
    assert_eq!(large.holes().unwrap(), [large]);
    raw_unmap(large);
}

fn residency_of_part_without_pagemap_scan_is_exact() {
    in_child_without("pagemap_scan", "check_parts");
}

fn check_parts() {
    residency_of_part_is_exact();
    residency_counts_each_page_by_its_state();
    let memory = anonymous(64);
    memory.populate(..bytes(32), Access::Read).unwrap();
    memory.populate(bytes(32).., Access::Write).unwrap();
    // The zero page does not count here either.
    let part = pages(memory.range(), 16, 32).residency().unwrap();
    assert_eq!(part.resident_bytes, bytes(16));
}

fn residency_of_other_process_matches_its_own() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--child", "hold_lazily_free_memory"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut own = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut own).unwrap();
    let seen = Residency::of_process(child.id()).unwrap();
    assert_eq!(format!("{:?}", seen.lazily_free_bytes), own.trim());
    assert!(seen.lazily_free_bytes >= Some(31 * MIB), "{seen:?}");
    assert!(seen.resident_bytes > 48 * MIB, "{seen:?}");
    let honest = seen.resident_without_lazily_free_bytes().unwrap();
    assert!((16 * MIB..24 * MIB).contains(&honest), "{seen:?}");
    assert!(seen.mapped_bytes > seen.resident_bytes, "{seen:?}");

    // The process ends, and stays a zombie until it is reaped.
    drop(child.stdin.take());
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
    let zombie = Residency::of_process(child.id()).unwrap();
    assert_eq!((zombie.mapped_bytes, zombie.resident_bytes), (0, 0));
    child.wait().unwrap();
    let error = Residency::of_process(child.id()).unwrap_err();
    assert_eq!(error, Error::NoProcess { pid: child.id() });
    assert_eq!(error.errno(), libc::ESRCH);
}

fn hold_lazily_free_memory() {
    stay_on_this_cpu();
    let used = anonymous(16 * MIB / page_size());
    fill(used.range());
    let idle = anonymous(32 * MIB / page_size());
    fill(idle.range());
    let _idle = idle.lazy_free().unwrap();
    let own = Residency::of_this_process().unwrap();
    println!("{:?}", own.lazily_free_bytes);
    let _ = std::io::stdin().read(&mut [0]);
}

fn residency_of_process_without_first_thread_is_read() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--child", "hold_memory_without_first_thread"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let seen = Residency::of_process(child.id()).unwrap();
    assert!(seen.resident_bytes > 48 * MIB, "{seen:?}");
    assert!(seen.mapped_bytes > seen.resident_bytes, "{seen:?}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

fn hold_memory_without_first_thread() {
    std::thread::spawn(|| {
        wait_for_end_of_first_thread();
        hold_lazily_free_memory();
        std::process::exit(0);
    });
    // As pthread_exit, which would unwind.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// The kernel cuts a name after 15 bytes.
fn residency_of_process_with_a_cut_name_is_read() {
    rustix::thread::set_name(c"nineteen-bytes\xc3\xa9").unwrap();
    assert!(
        Residency::of_process(std::process::id())
            .unwrap()
            .resident_bytes
            > 0
    );
    assert!(Residency::of_this_process().unwrap().mapped_bytes > 0);
}

fn residency_of_other_users_process_is_permission_denied() -> Completion {
    use std::os::unix::fs::MetadataExt;
    let first = std::fs::metadata("/proc/1").map(|first| first.uid());
    if !is_root() && first.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw()) {
        return skip("no process of another user is visible");
    }
    in_child_ok("query_other_users_process");
    Completion::Completed
}

fn query_other_users_process() {
    let was_root = is_root();
    drop_privileges();
    let pid = if was_root {
        std::os::unix::process::parent_id()
    } else {
        1
    };
    let error = Residency::of_process(pid).unwrap_err();
    assert!(
        matches!(error, Error::PermissionDenied { pid: of, .. } if of == pid),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {pid} ")) && text.contains("CAP_SYS_PTRACE"),
        "{text}"
    );
    // Every process may read its own residency.
    Residency::of_this_process().unwrap();
}
