//! headroom: how much more memory may be taken, in cgroups with real limits.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::{Access, Error, Headroom, HeadroomLimit, Mapping, page_size};

tests!(
    [exclusive] headroom_is_below_machine_memory,
    headroom_in_cgroup_follows_its_usage,
    headroom_in_nested_cgroup_follows_outer_limit,
    populate_over_cgroup_limit_is_rejected_not_killed,
    populate_in_cgroup_with_non_utf8_name_is_rejected_not_killed,
    populate_after_end_of_first_thread_is_rejected_not_killed,
    populate_of_memory_file_over_cgroup_limit_is_rejected,
    populate_of_unlinked_disk_file_needs_no_headroom,
    populate_waits_for_pending_frees,
    headroom_without_memory_for_the_caller_is_enomem;
    children:
    ask_without_memory,
    use_headroom_of_cgroup,
    check_outer_limit,
    populate_over_limit,
    populate_over_limit_without_first_thread,
    populate_memory_files_over_limit,
    populate_disk_file_over_limit,
    populate_after_release,
);

const MIB: usize = 1 << 20;

fn headroom_is_below_machine_memory() {
    let headroom = Headroom::now().unwrap();
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total_kib = total.unwrap().trim().trim_end_matches(" kB");
    assert!(headroom.bytes > 0, "{headroom:?}");
    assert!(headroom.bytes < total_kib.parse::<usize>().unwrap() * 1024);
}

fn headroom_in_cgroup_follows_its_usage() -> Completion {
    let group = match Group::with_limit(256 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("use_headroom_of_cgroup");
    Completion::Completed
}

fn use_headroom_of_cgroup() {
    let group = enter_group();
    let headroom = || {
        let Headroom { bytes, limit } = Headroom::now().unwrap();
        let HeadroomLimit::Cgroup {
            path,
            limit_bytes,
            used_bytes,
        } = limit
        else {
            panic!("{bytes} by {limit}");
        };
        assert_eq!(path, group);
        assert_eq!(limit_bytes, 256 * MIB);
        assert_eq!(bytes, limit_bytes - used_bytes);
        bytes
    };
    // The kernel charges each CPU in advance, and a program that starts has pages of its
    // own.
    const SLACK: usize = 8 * MIB;
    let near = |bytes: usize, expected: usize| bytes.abs_diff(expected) < SLACK;

    let before = headroom();
    assert!(near(before, 256 * MIB), "{before}");
    let memory = anonymous(64 * MIB / page_size());
    assert!(near(headroom(), before));
    fill(memory.range());
    let used = headroom();
    assert!(near(used, before - 64 * MIB), "{before} {used}");
    // Lazily freed memory counts as headroom, though it is still charged.
    let idle = memory.lazy_free().unwrap();
    let free = headroom();
    assert!(near(free, before), "{before} {free}");
    // Without reading the page tables, it is unknown whether the memory is still lazily
    // free.
    let lower_bound = Headroom::lower_bound().unwrap().bytes;
    assert!(near(lower_bound, used), "{used} {lower_bound}");
    // The kernel keeps counting reused memory in inactive_file.
    let memory = idle.reuse().unwrap();
    let after_reuse = headroom();
    assert!(near(after_reuse, used), "{used} {after_reuse}");
    memory.munmap().unwrap();
    tenure::drain(None).unwrap();
    let after = headroom();
    assert!(near(after, before), "{before} {after}");
}

fn headroom_in_nested_cgroup_follows_outer_limit() -> Completion {
    let inner = Group::with_limit(128 * MIB).and_then(|outer| outer.inner(256 * MIB));
    match inner {
        Ok(inner) => inner.run("check_outer_limit"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn check_outer_limit() {
    let group = enter_group();
    // Memory of the inner group is charged to the outer group, too.
    let memory = Mapping::anonymous(64 * MIB).map().unwrap();
    fill(memory.range());
    let headroom = Headroom::now().unwrap();
    assert!(headroom.bytes < 64 * MIB, "{headroom:?}");
    assert!(
        matches!(&headroom.limit, HeadroomLimit::Cgroup { path, limit_bytes, .. }
            if Some(path.as_path()) == group.parent() && *limit_bytes == 128 * MIB),
        "{headroom:?}"
    );
}

fn populate_over_cgroup_limit_is_rejected_not_killed() -> Completion {
    let group = match Group::with_limit(128 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_over_limit");
    Completion::Completed
}

fn populate_over_limit() {
    enter_group();
    let memory = anonymous(192 * MIB / page_size());
    let error = memory.populate(.., Access::Write).unwrap_err();
    let Error::NoMemory {
        need_bytes,
        headroom_bytes,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(need_bytes, memory.len());
    assert!(headroom_bytes <= 128 * MIB, "{headroom_bytes}");
    assert_eq!(count_present(memory.range()), 0);
    // Populating succeeds where it fits, and where the pages are present already.
    memory.populate(..96 * MIB, Access::Write).unwrap();
    memory.populate(..96 * MIB, Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 96 * MIB / page_size());
    // Small pieces are rejected at the limit, too.
    let pieces = (96 * MIB..192 * MIB).step_by(MIB);
    let refused = pieces
        .map(|at| memory.populate(at..at + MIB, Access::Write))
        .find_map(Result::err);
    assert!(
        matches!(refused, Some(Error::NoMemory { .. })),
        "{refused:?}"
    );
}

fn populate_in_cgroup_with_non_utf8_name_is_rejected_not_killed() -> Completion {
    let group = match Group::with_limit_and_name(128 * MIB, b" \\ \xff\xfe") {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_over_limit");
    Completion::Completed
}

fn populate_after_end_of_first_thread_is_rejected_not_killed() -> Completion {
    let group = match Group::with_limit(128 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_over_limit_without_first_thread");
    Completion::Completed
}

fn populate_over_limit_without_first_thread() {
    enter_group();
    std::thread::spawn(|| {
        wait_for_end_of_first_thread();
        let memory = anonymous(192 * MIB / page_size());
        let result = memory.populate(.., Access::Write);
        let is_refused = matches!(result, Err(Error::NoMemory { .. }));
        eprintln!("{result:?}");
        std::process::exit(if is_refused { 0 } else { 1 });
    });
    // As pthread_exit, which would unwind.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// How a mounted file is hidden before it is populated.
type Hide = fn(mount: &Path, file: &Path);

fn populate_of_memory_file_over_cgroup_limit_is_rejected() -> Completion {
    let group = match Group::with_limit(100 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_memory_files_over_limit");
    group.run_without("procmap_query", "populate_memory_files_over_limit");
    Completion::Completed
}

fn populate_memory_files_over_limit() {
    enter_group();
    let memfd = Mapping::memfd(200 * MIB, tenure::MemfdPages::Base);
    assert_is_refused(&memfd.map().unwrap(), "memfd");
    assert_is_refused(
        &Mapping::shared_anonymous(200 * MIB).map().unwrap(),
        "anonymous",
    );

    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE);
    let ways: [(&str, Hide); 5] = [
        ("linked", |_, _| ()),
        ("unlinked", |_, file| fs::remove_file(file).unwrap()),
        ("unmounted", |mount, _| {
            let path = c_string(mount);
            assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0);
        }),
        // The path of the mapped file then names a file on a disk.
        ("mounted over", |mount, file| {
            let other = tempfile::tempdir().unwrap();
            File::create(other.path().join(file.file_name().unwrap())).unwrap();
            let source = c_string(other.path());
            mount_over(&source, mount);
        }),
        ("long", |mount, file| {
            let folders = vec!["x".repeat(250); 20];
            let moved = folders.iter().fold(mount.to_owned(), |folder, name| {
                std::env::set_current_dir(&folder).unwrap();
                fs::create_dir(name).unwrap();
                name.into()
            });
            std::env::set_current_dir(moved).unwrap();
            fs::rename(file, "file").unwrap();
            std::env::set_current_dir("/").unwrap();
        }),
    ];
    for kind in [c"tmpfs", c"ramfs"] {
        for (way, hide) in ways {
            let folder = tempfile::tempdir().unwrap();
            mount(Some(kind), folder.path(), 0);
            let path = folder.path().join("a\nfile");
            let file = File::options()
                .create_new(true)
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            file.set_len(200 * MIB as u64).unwrap();
            let memory = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
            hide(folder.path(), &path);
            assert_is_refused(&memory, &format!("{way} file on {kind:?}"));
            let mounted = c_string(folder.path());
            while unsafe { libc::umount2(mounted.as_ptr(), libc::MNT_DETACH) } == 0 {}
        }
    }
}

fn assert_is_refused(memory: &Mapping, case: &str) {
    for access in [Access::Read, Access::Write] {
        let result = memory.populate(.., access);
        let is_refused = matches!(result, Err(Error::NoMemory { .. }));
        assert!(is_refused, "{case}, {access:?}: {result:?}");
    }
}

/// Mounts a new file system of a kind; without a kind it changes how the mount propagates.
fn mount(kind: Option<&CStr>, at: &Path, flags: libc::c_ulong) {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    let none = std::ptr::null();
    let answer = unsafe { libc::mount(none, c_string(at).as_ptr(), kind, flags, none.cast()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

fn mount_over(folder: &CStr, at: &Path) {
    let (at, none) = (c_string(at), std::ptr::null());
    let answer = unsafe {
        libc::mount(
            folder.as_ptr(),
            at.as_ptr(),
            none,
            libc::MS_BIND,
            none.cast(),
        )
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn populate_of_unlinked_disk_file_needs_no_headroom() -> Completion {
    let file = tempfile::tempfile().unwrap();
    let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
    if kind as libc::c_long == libc::TMPFS_MAGIC as libc::c_long {
        return skip("the folder for temporary files is not on a disk");
    }
    let group = match Group::with_limit(100 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_disk_file_over_limit");
    Completion::Completed
}

fn populate_disk_file_over_limit() {
    enter_group();
    let file = tempfile::tempfile().unwrap();
    file.set_len(200 * MIB as u64).unwrap();
    let memory = unsafe { Mapping::file(&file) }.map().unwrap();
    memory.populate(.., Access::Read).unwrap();
}

fn populate_waits_for_pending_frees() -> Completion {
    let group = match Group::with_limit(512 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_after_release");
    Completion::Completed
}

fn populate_after_release() {
    enter_group();
    for _ in 0..5 {
        // Twice this is more than the limit.
        let memory = anonymous(384 * MIB / page_size());
        memory.populate(.., Access::Write).unwrap();
        memory.munmap().unwrap();
    }
}

fn headroom_without_memory_for_the_caller_is_enomem() {
    in_child_ok("ask_without_memory");
}

fn ask_without_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(1);
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
    // All that the allocator has, each block leading to the next.
    let mut last = std::ptr::null_mut();
    for size in [64 << 10, 4 << 10, 256, 16] {
        loop {
            let block = unsafe { libc::malloc(size) }.cast::<*mut libc::c_void>();
            if block.is_null() {
                break;
            }
            unsafe { block.write(last) };
            last = block.cast();
        }
    }
    let errnos = [0; 3].map(|_| Headroom::now().map_or_else(|error| error.errno(), |_| 0));
    while !last.is_null() {
        let block = last;
        last = unsafe { block.cast::<*mut libc::c_void>().read() };
        unsafe { libc::free(block) };
    }
    assert_eq!(errnos, [libc::ENOMEM; 3]);
    // There is memory again.
    assert!(Headroom::now().unwrap().bytes > 0);
}
