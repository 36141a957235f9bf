//! pool: recycled memory becomes the next populated memory, as zeros and nothing else.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::pool::*;
use common::*;
use libtest_mimic::Completion;
use tenure::pool::{self, PoolOptions};
use tenure::{Access, Error, Features, HugePages, Mapping, MmapRequest, PageRange, page_size};

tests!(
    unless: missing;
    recycled_memory_becomes_next_mapping,
    recycled_memory_becomes_next_c_mapping,
    mapping_from_pool_is_as_a_new_one,
    populate_fills_missing_blocks_and_keeps_pages,
    populate_beside_writers_loses_no_write,
    populate_from_pool_keeps_advice,
    populate_of_registered_memory_is_left_to_kernel,
    locked_memory_is_left_to_kernel,
    inherited_memory_stays_out_of_pool,
    sparse_memory_stays_out_of_pool,
    recycling_beside_forks_leaves_children_no_descriptor,
    threads_of_pool_have_descriptor_tables_of_their_own,
    child_has_no_pool,
    needed_memory_empties_pool,
    prefill_fills_pool_ahead_of_need,
    prefill_on_use_waits_for_populate,
    [thorough] idle_blocks_become_lazily_free_and_populate_again,
    pool_in_cgroup_leaves_memory_to_program;
    everywhere:
    pool_is_off_by_default_and_after_zero,
    pool_without_mremap_is_unsupported,
    pool_without_userfaultfd_gives_what_it_prefilled;
    children:
    configure_without_mremap,
    prefill_without_userfaultfd,
    fill_cgroup_beside_pool,
);

fn recycled_memory_becomes_next_mapping() -> Completion {
    let _pool = Pool::of(LEN);
    completion(until_given(|| map_populated(LEN)).map(|memory| {
        assert!(count_present(memory.range()) > 0);
        assert!(is_all_zero(&memory));
    }))
}

fn recycled_memory_becomes_next_c_mapping() -> Completion {
    /// Unmapped also where the pool has given nothing, and the test tries again.
    struct Owned(PageRange);
    impl Drop for Owned {
        fn drop(&mut self) {
            unsafe { self.0.munmap() }.unwrap();
        }
    }
    let _pool = Pool::of(LEN);
    let map = || {
        let request = MmapRequest {
            len: LEN - 3 * page_size(),
            prot: libc::PROT_READ as u32 | libc::PROT_WRITE as u32,
            flags: libc::MAP_PRIVATE as u32 | libc::MAP_ANONYMOUS as u32,
            no_dump: true,
            populate: Some(Access::Write),
            ..Default::default()
        };
        Owned(PageRange::mmap(&request).unwrap())
    };
    completion(until_given_of(pages_without_advice, map).map(|owned| {
        let range = owned.0;
        assert_eq!(range.len(), LEN - 3 * page_size());
        assert!(is_zero(range));
        assert!(has_vm_flag(range, "dd") && !has_vm_flag(range, "dc"));
    }))
}

fn mapping_from_pool_is_as_a_new_one() -> Completion {
    let _pool = Pool::of(LEN);
    // A child has it, and the kernel may split and merge it as any other.
    completion(until_given(|| map_populated(LEN)).map(|mut memory| {
        let new = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
        let mut new = new.map().unwrap();
        new.as_mut_slice().unwrap()[0] = 1;
        assert_eq!(vm_flags(memory.range()), vm_flags(new.range()));
        memory.as_mut_slice().unwrap().fill(3);
        let range = memory.range();
        let status = fork(|| {
            let bytes = memory.as_slice();
            i32::from(bytes.iter().any(|&byte| byte != 3))
        });
        assert_eq!(status, 0);
        let middle = pages(range, 10, 20);
        unsafe { middle.discard() }.unwrap();
        assert!(is_zero(middle));
        assert_eq!(memory.as_slice()[LEN - 1], 3);
        memory.munmap().unwrap();
    }))
}

fn populate_fills_missing_blocks_and_keeps_pages() -> Completion {
    let _pool = Pool::of(LEN);
    let populate = || {
        let memory = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
        let mut memory = memory.map().unwrap();
        let marks = [5, LEN / 2 + 5 * page_size(), LEN - 1];
        for mark in marks {
            memory.as_mut_slice().unwrap()[mark] = 9;
        }
        memory.populate(.., Access::Write).unwrap();
        let kept = marks.map(|mark| memory.as_slice()[mark]);
        (memory, marks, kept)
    };
    completion(until_given(populate).map(|(mut memory, marks, kept)| {
        assert_eq!(kept, [9; 3]);
        for mark in marks {
            memory.as_mut_slice().unwrap()[mark] = 0;
        }
        assert!(is_all_zero(&memory));
    }))
}

/// Threads count up in each page while it is populated: a page that replaced another would
/// set a count back.
fn populate_beside_writers_loses_no_write() -> Completion {
    let _pool = Pool::of(LEN);
    let populate = || {
        let memory = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
        let memory = memory.map().unwrap();
        let is_done = AtomicBool::new(false);
        let page_count = memory.range().pages();
        let counts: &[AtomicU64] = unsafe {
            let words = LEN / size_of::<AtomicU64>();
            std::slice::from_raw_parts(memory.range().as_ptr().cast(), words)
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut expected = vec![0; page_count];
                let mut page = 0;
                while !is_done.load(Ordering::Relaxed) || page % page_count != 0 {
                    let number = page * 7919 % page_count;
                    let word = number * page_size() / size_of::<AtomicU64>() + 1;
                    let before = counts[word].fetch_add(1, Ordering::Relaxed);
                    assert_eq!(before, expected[number], "page {number}");
                    expected[number] += 1;
                    page += 1;
                }
            });
            memory.populate(.., Access::Write).unwrap();
            is_done.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
    };
    completion(until_given(populate))
}

fn populate_from_pool_keeps_advice() -> Completion {
    let _pool = Pool::of(LEN);
    let populate = || {
        let builder = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
        let memory = builder.no_dump().wipe_on_fork().map().unwrap();
        let before = vm_flags(memory.range());
        memory.populate(.., Access::Write).unwrap();
        (memory, before)
    };
    completion(until_given(populate).map(|(mut memory, before)| {
        assert_eq!(vm_flags(memory.range()), before);
        memory.as_mut_slice().unwrap().fill(1);
        let range = memory.range();
        assert_eq!(fork(|| i32::from(!is_zero(range))), 0, "it is wiped");
    }))
}

fn populate_of_registered_memory_is_left_to_kernel() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).map(|()| {
        let memory = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
        let memory = memory.map().unwrap();
        let other = register_with_foreign_userfaultfd(memory.range());
        let before = given_bytes();
        // Its missing pages are what the other one waits for.
        assert!(memory.populate(.., Access::Write).is_err());
        assert_eq!(given_bytes(), before);
        drop(other);
        memory.populate(.., Access::Write).unwrap();
        assert!(is_all_zero(&memory));
    }))
}

fn locked_memory_is_left_to_kernel() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).map(|()| {
        let memory = Mapping::anonymous(8 * MIB).huge_pages(HugePages::Never);
        let memory = memory.map().unwrap();
        if !may_lock_anything() {
            return;
        }
        raw_lock_on_fault(memory.range());
        let before = given_bytes();
        memory.populate(.., Access::Write).unwrap();
        assert_eq!(given_bytes(), before);
        assert!(is_locked_on_fault(memory.range()) && is_all_zero(&memory));
    }))
}

fn inherited_memory_stays_out_of_pool() {
    inherited_memory_stays_out(recycle);
    inherited_memory_stays_out(|mut memory| {
        memory.discard(..).unwrap();
        tenure::drain(Some(LIMIT)).unwrap();
        assert!(is_all_zero(&memory));
        memory.munmap_sync().unwrap();
    });
}

/// Releases memory of which a child shares each page.
fn inherited_memory_stays_out(release: fn(Mapping)) {
    let _pool = Pool::of(LEN);
    let options = PoolOptions::new().max_bytes(LEN).recycle_released(true);
    pool::configure(&options).unwrap();
    let memory = base_pages(LEN);
    let range = memory.range();
    let before = pool::stats().recycled_bytes;
    // The child shares the pages until the parent has released and zeroed what it can.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(writer);
        let _ = reader.read(&mut [0]);
        let bytes = unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) };
        unsafe { libc::_exit(i32::from(bytes.iter().any(|&byte| byte != 7))) };
    }
    drop(reader);
    release(memory);
    let recycled_bytes = pool::stats().recycled_bytes - before;
    drop(writer);
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child has lost its contents");
    assert_eq!(recycled_bytes, 0);
    assert!(is_all_zero(&map_populated(LEN)));
}

fn sparse_memory_stays_out_of_pool() {
    let _pool = Pool::of(LEN);
    let memory = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
    let mut memory = memory.map().unwrap();
    for page in memory.as_mut_slice().unwrap().chunks_mut(2 * page_size()) {
        page[0] = 1;
    }
    recycle(memory);
    assert_eq!(pool::stats().bytes, 0);
}

fn recycling_beside_forks_leaves_children_no_descriptor() {
    let _pool = Pool::of(LEN);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let recycler = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                recycle(base_pages(8 * MIB));
                drop(map_populated(8 * MIB));
            }
        });
        for _ in 0..50 {
            let has_userfaultfd = || {
                let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
                let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
                links
                    .filter(|link| link.as_os_str() == "anon_inode:[userfaultfd]")
                    .count()
            };
            assert_eq!(fork(|| has_userfaultfd() as i32), 0);
        }
        is_done.store(true, Ordering::Relaxed);
        recycler.join().unwrap();
    });
}

/// A program that closes all descriptors closes none of theirs, nor is a number of its own
/// closed by them.
fn threads_of_pool_have_descriptor_tables_of_their_own() -> Completion {
    if unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0) } != 0 {
        return skip("close_range is refused here");
    }
    let own = std::fs::File::open("/dev/null").unwrap();
    let number = own.as_raw_fd();
    let has_own_table = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.map(|task| task.path()).any(|task| {
            let comm = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            // The list cannot be read once the thread has ended.
            comm.trim() == name
                && std::fs::read_dir(task.join("fd")).is_ok()
                && std::fs::symlink_metadata(task.join(format!("fd/{number}"))).is_err()
                && task.exists()
        })
    };
    let _pool = Pool::of(LEN);
    let start = std::time::Instant::now();
    // A worker without work ends after some seconds.
    while !(has_own_table("tenure-free") && has_own_table("tenure-pool")) {
        if let Err(completion) = fill_pool(LEN) {
            return completion;
        }
        // What the pool has no place for is recycled, too.
        recycle(base_pages(LEN));
        assert!(start.elapsed() < LIMIT, "they use the program's");
    }
    Completion::Completed
}

fn child_has_no_pool() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).map(|()| {
        let status = fork(|| {
            let inherited = pool::stats();
            let memory = map_populated(8 * MIB);
            let is_zero = is_all_zero(&memory);
            let _pool = Pool::of(LEN);
            let own = pool::stats().max_bytes as usize;
            i32::from(inherited.max_bytes != 0 || inherited.bytes != 0 || !is_zero || own != LEN)
        });
        assert_eq!(status, 0);
        assert!(is_all_zero(&map_populated(LEN)));
    }))
}

fn needed_memory_empties_pool() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).map(|()| {
        let before = pool::stats().returned_bytes;
        assert!(tenure::release::drain_for_retry());
        let stats = pool::stats();
        assert_eq!(stats.bytes, 0);
        assert!(stats.returned_bytes - before >= LEN as u64);
        assert_eq!(stats.max_bytes, LEN as u64);
    }))
}

fn prefill_fills_pool_ahead_of_need() -> Completion {
    completion(prefill(LEN).and_then(|_pool| {
        let memory = Mapping::anonymous(LEN).map_populated().unwrap();
        assert!(is_all_zero(&memory));
        match wait_until(|| pool::stats().bytes == LEN as u64) {
            true => Ok(()),
            false => Err(skip("memory is short")),
        }
    }))
}

fn prefill_on_use_waits_for_populate() -> Completion {
    pool::configure(
        &PoolOptions::new()
            .max_bytes(LEN)
            .prefill_bytes(LEN)
            .prefill_on_use(true),
    )
    .unwrap();
    let _pool = Pool;
    let before = pool::stats().prefilled_bytes;
    let short = Mapping::anonymous(1 << 20).map_populated().unwrap();
    let unpopulated = Mapping::anonymous(LEN).map().unwrap();
    // A thread that fills the pool would have begun.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(
        pool::stats().prefilled_bytes,
        before,
        "prefilled before any use"
    );
    drop((short, unpopulated));
    assert!(is_all_zero(&map_populated(LEN)));
    match wait_until(|| pool::stats().prefilled_bytes > before) {
        true => Completion::Completed,
        false => skip("memory is short"),
    }
}

fn idle_blocks_become_lazily_free_and_populate_again() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).and_then(|()| {
        if !wait_until(|| pool::stats().lazily_free_bytes > 0) {
            return Err(skip("pressure has emptied the pool"));
        }
        let mut memory = map_populated(LEN);
        assert!(is_all_zero(&memory));
        memory.as_mut_slice().unwrap().fill(1);
        assert!(memory.as_slice().iter().all(|&byte| byte == 1));
        Ok(())
    }))
}

/// Needs most of the cgroup right after it has filled a pool of half of it.
fn fill_cgroup_beside_pool() {
    enter_group();
    let _pool = Pool::of(128 * MIB);
    recycle(base_pages(128 * MIB));
    let memory = base_pages(225 * MIB);
    assert!(memory.as_slice().iter().all(|&byte| byte == 7));
}

fn pool_in_cgroup_leaves_memory_to_program() -> Completion {
    match Group::with_limit(256 * MIB).and_then(Group::without_swap) {
        Ok(group) => group.run("fill_cgroup_beside_pool"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn pool_is_off_by_default_and_after_zero() {
    assert_eq!(pool::stats().max_bytes, 0);
    if Features::get().mremap_dontunmap.is_err() || Features::get().madv_populate.is_err() {
        return;
    }
    let pool = Pool::of(LEN - 1);
    assert_eq!(pool::stats().max_bytes, LEN as u64);
    drop(pool);
    let stats = pool::stats();
    assert_eq!((stats.max_bytes, stats.bytes), (0, 0));
}

fn configure_without_mremap() {
    let answer = pool::configure(&PoolOptions::new().max_bytes(LEN));
    assert!(
        matches!(answer, Err(Error::Unsupported { .. })),
        "{answer:?}"
    );
    assert!(is_all_zero(&map_populated(8 * MIB)));
}

fn pool_without_mremap_is_unsupported() {
    in_child_without("mremap_dontunmap", "configure_without_mremap");
}

fn prefill_without_userfaultfd() {
    let features = Features::get();
    if features.mremap_dontunmap.is_err() || features.madv_populate.is_err() {
        return;
    }
    let Ok(_pool) = prefill(LEN) else { return };
    let memory = Mapping::anonymous(LEN).map_populated().unwrap();
    assert!(is_all_zero(&memory));
    recycle(memory);
    assert_eq!(pool::stats().recycled_bytes, 0);
}

fn pool_without_userfaultfd_gives_what_it_prefilled() {
    in_child_without("userfaultfd", "prefill_without_userfaultfd");
}
