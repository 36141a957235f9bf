//! pool: memory that it cannot serve, sizes that it cannot have, and programs that need the
//! memory that it holds.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::Read as _;

use common::cgroup::{Group, enter_group};
use common::pool::*;
use common::*;
use libtest_mimic::Completion;
use tenure::pool::{self, PoolOptions};
use tenure::pressure::{self, Level};
use tenure::{Access, Errno, Error, Features, MmapRequest, PageRange};

tests!(
    unless: missing;
    executable_memory_leaves_blocks_in_pool,
    memory_of_thread_with_policy_is_left_to_kernel,
    pool_that_was_locked_keeps_recycled_memory_again,
    block_that_moved_in_part_leaves_no_bytes_behind,
    pool_of_mergeable_process_is_not_mergeable,
    [thorough] program_that_needs_memory_in_pool_runs_as_without;
    everywhere:
    pool_of_refused_size_is_off_and_takes_no_memory;
    children:
    configure_refused_sizes,
    recycle_after_munlockall,
    recycle_what_moves_in_part,
    pool_beside_mergeable_memory,
    need_900_mib_beside_pool,
);

fn executable_memory_leaves_blocks_in_pool() -> Completion {
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).and_then(|()| {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let request = MmapRequest {
            len: LEN,
            prot: protection as u32,
            flags: libc::MAP_PRIVATE as u32 | libc::MAP_ANONYMOUS as u32,
            ..Default::default()
        };
        let Ok(range) = PageRange::mmap(&request) else {
            return Err(skip("memory cannot be writable and executable"));
        };
        let before = given_bytes();
        unsafe { range.populate(Access::Write) }.unwrap();
        assert!(given_bytes() == before && is_zero(range));
        let has_all = pool::stats().bytes == LEN as u64;
        assert!(has_all || pressure::level() != Level::None, "it lost some");
        unsafe { range.munmap() }.unwrap();
        Ok(())
    }))
}

fn memory_of_thread_with_policy_is_left_to_kernel() -> Completion {
    fn set_policy(mode: i32, nodes: &u64) -> bool {
        let mask = match mode {
            libc::MPOL_DEFAULT => std::ptr::null(),
            _ => &raw const *nodes,
        };
        unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, u64::BITS) == 0 }
    }
    let _pool = Pool::of(LEN);
    completion(fill_pool(LEN).and_then(|()| {
        let mapping = tenure::Mapping::anonymous(LEN).map().unwrap();
        if !set_policy(libc::MPOL_BIND, &1) {
            return Err(skip("set_mempolicy is not available"));
        }
        let before = given_bytes();
        let answer = mapping.populate(.., Access::Write);
        let given = given_bytes() - before;
        assert!(set_policy(libc::MPOL_DEFAULT, &0));
        answer.unwrap();
        assert_eq!(given, 0);
        Ok(())
    }))
}

fn recycle_after_munlockall() {
    let _pool = Pool::of(LEN);
    assert_eq!(unsafe { libc::mlockall(libc::MCL_CURRENT) }, 0);
    assert_eq!(unsafe { libc::munlockall() }, 0);
    if fill_pool(LEN).is_ok() {
        assert!(is_all_zero(&map_populated(LEN)));
    }
}

fn pool_that_was_locked_keeps_recycled_memory_again() -> Completion {
    if !may_lock_anything() {
        return skip("locking everything needs CAP_IPC_LOCK");
    }
    in_child_ok("recycle_after_munlockall");
    Completion::Completed
}

/// Refuses MADV_DONTNEED and MADV_DONTNEED_LOCKED for this thread and those that it starts.
fn refuse_discarding() {
    const ADVICE_OFFSET: u32 = 32;
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let ret = libc::BPF_RET | libc::BPF_K;
    const MADV_DONTNEED_LOCKED: u32 = 24;
    install_filter(&mut [
        step(load, 0, 0, 0),
        step(is, 0, 4, libc::SYS_madvise as u32),
        step(load, 0, 0, ADVICE_OFFSET),
        step(is, 1, 0, libc::MADV_DONTNEED as u32),
        step(is, 0, 1, MADV_DONTNEED_LOCKED),
        step(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        step(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
}

/// A child shares the second half of each block, so that only the first half moves.
fn recycle_what_moves_in_part() {
    let block = 2 * MIB;
    Features::get();
    refuse_discarding();
    let _pool = Pool::of(block);
    let mut memory = base_pages(4 * block);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(writer);
        let _ = reader.read(&mut [0]);
        unsafe { libc::_exit(0) };
    }
    drop(reader);
    for block in memory.as_mut_slice().unwrap().chunks_mut(block) {
        block[..MIB].fill(8);
    }
    recycle(memory);
    let options = PoolOptions::new().max_bytes(block).prefill_bytes(block);
    pool::configure(&options).unwrap();
    // Where several GiB of memory are left, it is filled with the place as it is.
    let is_ample = tenure::Headroom::now().unwrap().bytes > 8 << 30;
    if is_ample && wait_until(|| pool::stats().bytes > 0) {
        let memory = tenure::Mapping::anonymous(2 * block).map().unwrap();
        unsafe { pool::fill_missing(memory.range(), None) };
        assert!(is_all_zero(&memory));
    }
    drop(writer);
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
}

fn block_that_moved_in_part_leaves_no_bytes_behind() {
    in_child_ok("recycle_what_moves_in_part");
}

/// Needs most of the cgroup right after it has filled a pool of half of it, by touching and
/// by populating.
fn need_900_mib_beside_pool() {
    const NEED: usize = 900 * MIB;
    enter_group();
    for populates in [false, true] {
        let _pool = Pool::of(512 * MIB);
        for _ in 0..16 {
            recycle(base_pages(LEN));
        }
        let held_bytes = pool::stats().bytes;
        assert!(held_bytes > 0 || pressure::level() != Level::None);
        if populates {
            assert!(is_all_zero(&map_populated(NEED)));
            continue;
        }
        let memory = base_pages(NEED);
        assert!(memory.as_slice().iter().all(|&byte| byte == 7));
        memory.munmap_sync().unwrap();
    }
}

fn program_that_needs_memory_in_pool_runs_as_without() -> Completion {
    match Group::with_limit(1024 * MIB).and_then(Group::without_swap) {
        Ok(group) => group.run("need_900_mib_beside_pool"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn configure_refused_sizes() {
    let is_there =
        Features::get().mremap_dontunmap.is_ok() && Features::get().madv_populate.is_ok();
    // More than there are addresses, and more than a number can say.
    for bytes in [1 << 50, usize::MAX] {
        if is_there {
            pool::configure(&PoolOptions::new().max_bytes(LEN)).unwrap();
        }
        let answer = pool::configure(&PoolOptions::new().max_bytes(bytes));
        assert!(match answer {
            Err(Error::System { errno, .. }) => is_there && errno == Errno::NOMEM,
            Err(Error::Unsupported { .. }) => !is_there,
            _ => false,
        });
        assert_eq!(pool::stats().max_bytes, 0);
    }
    assert!(status_kib("VmHWM") < 1 << 20, "it takes a list for each");
}

fn pool_of_refused_size_is_off_and_takes_no_memory() {
    in_child_ok("configure_refused_sizes");
}

/// PR_SET_MEMORY_MERGE (Linux 6.4): all memory of the process may be merged.
const SET_MEMORY_MERGE: i32 = 67;

fn pool_of_mergeable_process_is_not_mergeable() -> Completion {
    in_child_ok("pool_beside_mergeable_memory");
    Completion::Completed
}

fn pool_beside_mergeable_memory() {
    // Refused without CAP_SYS_RESOURCE: then no memory is mergeable.
    unsafe { libc::prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) };
    let _pool = Pool::of(LEN);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let flags = |line: &str| Some(format!("{} ", line.strip_prefix("VmFlags: ")?));
    // Of all mappings the pool's alone are in no child and no dump.
    let of_pool: Vec<_> = (smaps.lines().filter_map(flags))
        .filter(|flags| flags.contains("dc ") && flags.contains("dd "))
        .collect();
    assert!(!of_pool.is_empty());
    assert!(
        of_pool.iter().all(|flags| !flags.contains("mg ")),
        "{of_pool:?}"
    );
}
