//! teardown: what a parent, other processes and the program itself see of the helper. A
//! stopped helper shows what does not wait for it.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory and processes that they have made themselves"
)]

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, setrlimit};
use tenure::{Access, Error, Mapping, page_size, teardown};

tests! {
    parent_reaps_victim_before_memory_is_freed,
    core_dump_of_victim_with_helper_is_written,
    helper_frees_with_several_tasks,
    descriptors_close_before_memory_is_freed,
    robust_mutex_is_released_before_memory_is_freed,
    helper_is_confined,
    plain_wait_ignores_helper,
    exec_ends_helper,
    exec_after_close_range_ends_helper,
    close_range_keeps_helper_and_memory,
    vfork_child_before_exec_keeps_memory,
    bare_clone_child_does_not_delay_helper,
    helper_survives_end_of_enabling_thread,
    concurrent_enable_starts_one_helper,
    disable_leaves_no_mapping_or_descriptor,
    enable_does_not_shift_next_descriptor,
    forked_child_has_no_helper,
    forked_child_enables_its_own_helper,
    killed_helper_is_replaced_by_enable,
    helper_without_unshare_frees_with_one_task,
    failed_enable_leaves_nothing,
    enable_in_pid_namespace_works_from_its_init;
    children:
    large_victim, victim_enabled_by_thread, dumping_victim, exec_cat, close_all_and_exec_cat,
    listening_victim, child_before_exec, bare_clone, without_unshare, enable_at_process_limit
}

const MIB: usize = 1 << 20;
const VICTIM_MIB: usize = 512;

/// A function of this file in a process of its own, which has a helper.
struct Victim {
    process: Child,
    output: BufReader<ChildStdout>,
    helper: i32,
}

impl Victim {
    /// Starts the victim, waits until it is ready, and finds its helper.
    fn new(name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--child", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let helper = helper_of(process.id() as i32).expect("a helper");
        Self {
            process,
            output,
            helper,
        }
    }

    /// Starts a victim and stops its helper, which then cannot do anything.
    fn with_helper_stopped(name: &str) -> Self {
        let victim = Self::new(name);
        send(victim.helper, libc::SIGSTOP);
        wait_until("the helper stops", || state(victim.helper) == Some('T'));
        victim
    }

    fn send_command(&mut self, word: &str) {
        let mut input = self.process.stdin.as_ref().unwrap();
        writeln!(input, "{word}").unwrap();
    }

    fn helper_rss_kib(&self) -> u64 {
        rss_kib(self.helper)
    }

    fn assert_helper_ends(&self) {
        // The helper may have been stopped, and may have ended.
        unsafe { libc::kill(self.helper, libc::SIGCONT) };
        wait_until_gone(self.helper);
    }
}

/// A test that fails leaves no process behind, stopped or not, that would hold the runner's
/// output open.
impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if stat(self.helper).is_some_and(|(name, _)| name == "tenure-teardown") {
            // It may have ended by itself, and init may reap it meanwhile.
            unsafe { libc::kill(self.helper, libc::SIGKILL) };
        }
    }
}

/// Reports to the test that the victim is ready.
fn ready() {
    println!("ready");
}

/// Reads a command of the test.
fn read_command() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn send(pid: i32, signal: i32) {
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Returns the name and the fields of `/proc/PID/stat` behind it: state, parent, group,
/// session, ...
fn stat(pid: i32) -> Option<(String, Vec<String>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    Some((name, tail.split_whitespace().map(str::to_owned).collect()))
}

fn state(pid: i32) -> Option<char> {
    stat(pid)?.1[0].chars().next()
}

fn helpers_of(pid: i32) -> Vec<i32> {
    let is_helper = |candidate: &i32| {
        stat(*candidate).is_some_and(|(name, fields)| {
            name == "tenure-teardown" && fields[1] == pid.to_string() && fields[0] != "Z"
        })
    };
    let names = std::fs::read_dir("/proc").unwrap();
    names
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(is_helper)
        .collect()
}

fn helper_of(pid: i32) -> Option<i32> {
    helpers_of(pid).first().copied()
}

fn my_helpers() -> Vec<i32> {
    helpers_of(std::process::id() as i32)
}

fn status_of(pid: i32, line: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|text| text.strip_prefix(&format!("{line}:")))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn rss_kib(pid: i32) -> u64 {
    let rss = status_of(pid, "VmRSS");
    rss.trim_end_matches(" kB").parse().unwrap_or(0)
}

#[track_caller]
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(holds_within_a_minute(is_so), "{what}: not within a minute");
}

fn holds_within_a_minute(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[track_caller]
fn wait_until_gone(pid: i32) {
    assert!(ends(pid), "the helper does not end within a minute");
}

/// Whether the process ends. A zombie has no memory any more; init reaps it.
fn ends(pid: i32) -> bool {
    holds_within_a_minute(|| matches!(state(pid), None | Some('Z' | 'X')))
}

fn assert_no_child_left() {
    let answer = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    let error = std::io::Error::last_os_error();
    assert_eq!((answer, error.raw_os_error()), (-1, Some(libc::ECHILD)));
}

fn populated(mib: usize) -> Mapping {
    let memory = anonymous(mib * MIB / page_size());
    memory.populate(.., Access::Write).unwrap();
    memory
}

fn end_as_commanded() {
    match read_command().as_str() {
        "exit" => std::process::exit(7),
        "abort" => std::process::abort(),
        other => panic!("{other}"),
    }
}

fn large_victim() {
    let _memory = populated(VICTIM_MIB);
    no_core();
    teardown::enable().unwrap();
    ready();
    end_as_commanded();
}

fn no_core() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).unwrap();
}

/// Whether a core dump, which is begun even if its size is limited to 0, ends every process that
/// shares the memory: before Linux 5.16.
fn dump_ends_helper() -> bool {
    let kernel = procfs::sys::kernel::Version::current().unwrap();
    (kernel.major, kernel.minor) < (5, 16)
}

fn parent_reaps_victim_before_memory_is_freed() {
    for end in ["kill", "exit", "abort"] {
        if end == "abort" && dump_ends_helper() {
            continue;
        }
        let mut victim = Victim::with_helper_stopped("large_victim");
        match end {
            "kill" => victim.process.kill().unwrap(),
            _ => victim.send_command(end),
        }
        let status = victim.process.wait().unwrap();
        match end {
            "kill" => assert_eq!(status.signal(), Some(libc::SIGKILL)),
            "exit" => assert_eq!(status.code(), Some(7)),
            _ => assert_eq!(status.signal(), Some(libc::SIGABRT)),
        }
        assert!(
            victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64,
            "{end}"
        );
        victim.assert_helper_ends();
    }
}

fn dumping_victim() {
    let directory = read_command();
    std::env::set_current_dir(directory).unwrap();
    let no_limit = Rlimit {
        current: None,
        maximum: None,
    };
    setrlimit(Resource::Core, no_limit).unwrap();
    teardown::enable().unwrap();
    ready();
    end_as_commanded();
}

fn core_dump_of_victim_with_helper_is_written() -> Completion {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" || rustix::process::getrlimit(Resource::Core).maximum.is_some() {
        return skip("needs the core_pattern \"core\" and no hard limit on dumps");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--child", "dumping_victim"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    writeln!(input, "{}", directory.path().display()).unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let helper = helper_of(process.id() as i32).unwrap();
    writeln!(input, "abort").unwrap();
    let status = process.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    assert!(status.core_dumped());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    wait_until_gone(helper);
    Completion::Completed
}

fn helper_frees_with_several_tasks() -> Completion {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("needs two CPUs");
    }
    // A look at the threads may come too late.
    let seen = (0..10).any(|_| {
        let mut victim = Victim::new("large_victim");
        victim.process.kill().unwrap();
        let mut max_tasks = 0;
        while !matches!(state(victim.helper), None | Some('Z' | 'X')) {
            max_tasks = max_tasks.max(status_of(victim.helper, "Threads").parse().unwrap_or(0));
        }
        victim.process.wait().unwrap();
        max_tasks > 1
    });
    assert!(seen);
    Completion::Completed
}

fn address(pid: u32) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("tenure-teardown-{pid}")).unwrap()
}

fn listening_victim() {
    let _listener = UnixListener::bind_addr(&address(std::process::id())).unwrap();
    teardown::enable().unwrap();
    ready();
    end_as_commanded();
}

fn descriptors_close_before_memory_is_freed() {
    let mut victim = Victim::with_helper_stopped("listening_victim");
    let address = address(victim.process.id());
    drop(UnixStream::connect_addr(&address).unwrap());
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let error = UnixStream::connect_addr(&address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    // Its standard output was a pipe.
    let mut rest = Vec::new();
    assert_eq!(victim.output.read_to_end(&mut rest).unwrap(), 0);
    victim.assert_helper_ends();
}

fn robust_mutex_is_released_before_memory_is_freed() {
    let shared = Mapping::shared_anonymous(page_size()).map().unwrap();
    let mutex = shared.range().as_ptr().cast::<libc::pthread_mutex_t>();
    unsafe {
        let mut kind = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut kind);
        libc::pthread_mutexattr_setpshared(&mut kind, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&mut kind, libc::PTHREAD_MUTEX_ROBUST);
        assert_eq!(libc::pthread_mutex_init(mutex, &kind), 0);
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_locked = unsafe { libc::pthread_mutex_lock(mutex) } == 0;
        if is_locked && teardown::enable().is_ok() {
            (&writer).write_all(b"!").unwrap();
        }
        loop {
            unsafe { libc::pause() };
        }
    }
    (&reader).read_exact(&mut [0]).unwrap();
    let helper = helper_of(pid).unwrap();
    send(helper, libc::SIGSTOP);
    wait_until("the helper stops", || state(helper) == Some('T'));
    assert_eq!(unsafe { libc::pthread_mutex_trylock(mutex) }, libc::EBUSY);
    send(pid, libc::SIGKILL);
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    assert_eq!(unsafe { libc::pthread_mutex_lock(mutex) }, libc::EOWNERDEAD);
    send(helper, libc::SIGCONT);
    wait_until_gone(helper);
}

fn helper_is_confined() {
    teardown::enable().unwrap();
    let helper = my_helpers()[0];
    assert_eq!(status_of(helper, "Seccomp"), "2");
    assert_eq!(status_of(helper, "NoNewPrivs"), "1");
    // All signals except SIGKILL and SIGSTOP.
    assert_eq!(status_of(helper, "SigBlk"), "fffffffffffbfeff");
    let (_, fields) = stat(helper).unwrap();
    assert_eq!(fields[2..4], [helper.to_string(), helper.to_string()]);
    let fds = std::fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
    assert_eq!(fds.count(), 3);
    let root = std::fs::read_link(format!("/proc/{helper}/cwd")).unwrap();
    assert_eq!(root.to_str(), Some("/"));
    teardown::disable();
}

fn plain_wait_ignores_helper() {
    let status = fork(|| {
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        let child = unsafe { libc::fork() };
        if child == 0 {
            unsafe { libc::_exit(3) };
        }
        let wait = |flags| {
            let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), flags) };
            (pid, std::io::Error::last_os_error().raw_os_error())
        };
        assert_eq!(wait(0).0, child);
        // Would hang without WNOHANG if the helper were waited for.
        assert_eq!(wait(libc::WNOHANG), (-1, Some(libc::ECHILD)));
        // A dead helper is ignored as well.
        send(helper, libc::SIGKILL);
        wait_until_gone(helper);
        assert_eq!(wait(libc::WNOHANG), (-1, Some(libc::ECHILD)));
        teardown::disable();
        assert_no_child_left();
        0
    });
    assert_eq!(status, 0);
}

fn exec_cat() {
    let _memory = populated(VICTIM_MIB);
    teardown::enable().unwrap();
    ready();
    read_command();
    panic!("{}", Command::new("cat").exec());
}

fn exec_ends_helper() {
    let mut victim = Victim::with_helper_stopped("exec_cat");
    victim.send_command("now");
    let pid = victim.process.id() as i32;
    wait_until("the other program runs", || {
        stat(pid).is_some_and(|(name, _)| name == "cat")
    });
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_ends();
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
}

fn close_all_and_exec_cat() {
    teardown::enable().unwrap();
    ready();
    read_command();
    close_from_3();
    panic!("{}", Command::new("cat").exec());
}

fn close_from_3() {
    assert_eq!(
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) },
        0
    );
}

fn exec_after_close_range_ends_helper() {
    let mut victim = Victim::new("close_all_and_exec_cat");
    victim.send_command("now");
    wait_until_gone(victim.helper);
    assert!(victim.process.try_wait().unwrap().is_none());
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
}

fn close_range_keeps_helper_and_memory() {
    let status = fork(|| {
        let memory = anonymous(64 * MIB / page_size());
        fill(memory.range());
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        close_from_3();
        // The helper checks more than once meanwhile.
        std::thread::sleep(Duration::from_millis(2500));
        assert!(is_filled(memory.range()));
        assert!(teardown::is_enabled());
        assert_eq!(my_helpers(), [helper]);
        // Another file may have the lifeline's number by now.
        let file = std::fs::File::open("/dev/null").unwrap();
        let others: Vec<_> = (0..16).map(|_| file.try_clone().unwrap()).collect();
        teardown::disable();
        assert!(others.iter().all(|other| other.metadata().is_ok()));
        assert!(is_filled(memory.range()));
        assert_no_child_left();
        0
    });
    assert_eq!(status, 0);
}

/// Works like `posix_spawn`, but the child takes its time before exec.
fn child_before_exec() {
    struct Shared {
        memory: tenure::PageRange,
        parent: i32,
    }
    extern "C" fn child(shared: *mut libc::c_void) -> i32 {
        let shared = unsafe { &*shared.cast::<Shared>() };
        unsafe {
            while libc::getppid() == shared.parent {
                libc::usleep(1000);
            }
            libc::usleep(1_000_000);
        }
        let word: &[u8] = match is_filled(shared.memory) {
            true => b"intact\n",
            false => b"changed\n",
        };
        unsafe { libc::write(1, word.as_ptr().cast(), word.len()) };
        0
    }
    let memory = anonymous(64 * MIB / page_size());
    fill(memory.range());
    teardown::enable().unwrap();
    ready();
    let shared = Shared {
        memory: memory.range(),
        parent: std::process::id() as i32,
    };
    let stack = anonymous(MIB / page_size());
    unsafe {
        libc::clone(
            child,
            stack.range().as_ptr().add(stack.len()).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw const shared).cast_mut().cast(),
        );
    }
}

fn vfork_child_before_exec_keeps_memory() {
    let mut victim = Victim::new("child_before_exec");
    let pid = victim.process.id() as i32;
    let has_child = || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap().split_whitespace().count() == 2
    };
    wait_until("the child is there", has_child);
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let mut line = String::new();
    victim.output.read_line(&mut line).unwrap();
    assert_eq!(line, "intact\n");
    victim.assert_helper_ends();
}

fn bare_clone() {
    teardown::enable().unwrap();
    let flags = libc::SIGCHLD as libc::c_long;
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        assert!(!teardown::is_enabled());
        unsafe { libc::pause() };
    }
    println!("ready");
    println!("{child}");
    end_as_commanded();
}

fn bare_clone_child_does_not_delay_helper() {
    // A round in which the child does not live shows nothing.
    assert!((0..3).any(|_| helper_ends_beside_bare_clone_child()));
}

/// Checks that the helper ends with its process. Returns whether the child has lived on.
fn helper_ends_beside_bare_clone_child() -> bool {
    let mut victim = Victim::new("bare_clone");
    let mut line = String::new();
    victim.output.read_line(&mut line).unwrap();
    let child = line.trim().parse().unwrap();
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let has_gone = ends(victim.helper);
    // The child has the helper's descriptor, and lives.
    let lives = holds_within_a_minute(|| matches!(state(child), Some('S') | None));
    let is_killed = unsafe { libc::kill(child, libc::SIGKILL) } == 0;
    assert!(lives && has_gone);
    if !is_killed {
        println!("the child {child} has ended by itself");
    }
    is_killed
}

fn victim_enabled_by_thread() {
    let _memory = populated(VICTIM_MIB);
    std::thread::spawn(|| teardown::enable().unwrap())
        .join()
        .unwrap();
    // The thread's stack and thread-local storage are unmapped, or cached by glibc for later
    // threads, unless the helper keeps its own.
    for _ in 0..100 {
        std::thread::spawn(|| ()).join().unwrap();
    }
    assert!(teardown::is_enabled());
    ready();
    end_as_commanded();
}

fn helper_survives_end_of_enabling_thread() {
    let mut victim = Victim::with_helper_stopped("victim_enabled_by_thread");
    send(victim.helper, libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(100));
    wait_until("the helper waits", || state(victim.helper) == Some('S'));
    send(victim.helper, libc::SIGSTOP);
    wait_until("the helper stops", || state(victim.helper) == Some('T'));
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_ends();
}

fn concurrent_enable_starts_one_helper() {
    for _ in 0..10 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| teardown::enable().unwrap());
            }
        });
        assert!(teardown::is_enabled());
        let helpers = my_helpers();
        assert_eq!(helpers.len(), 1);
        teardown::enable().unwrap();
        assert_eq!(my_helpers(), helpers);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(teardown::disable);
            }
        });
        assert!(!teardown::is_enabled());
        assert_eq!(my_helpers(), []);
    }
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn disable_leaves_no_mapping_or_descriptor() {
    let status = fork(|| {
        teardown::disable();
        teardown::enable().unwrap();
        teardown::disable();
        let before = (mappings(), descriptors());
        for _ in 0..20 {
            teardown::enable().unwrap();
            assert!(descriptors() > before.1);
            teardown::disable();
        }
        teardown::disable();
        assert_eq!((mappings(), descriptors()), before);
        assert_no_child_left();
        0
    });
    assert_eq!(status, 0);
}

fn enable_does_not_shift_next_descriptor() {
    let next = || {
        let file = std::fs::File::open("/dev/null").unwrap();
        file.as_raw_fd()
    };
    let status = fork(move || {
        let without = next();
        teardown::enable().unwrap();
        assert_eq!(next(), without);
        teardown::disable();
        // No such high descriptor numbers are allowed.
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(100),
                maximum: Some(100),
            },
        )
        .unwrap();
        teardown::enable().unwrap();
        assert!(teardown::is_enabled());
        0
    });
    assert_eq!(status, 0);
}

fn forked_child_has_no_helper() {
    let without = descriptors();
    teardown::enable().unwrap();
    let helper = my_helpers()[0];
    let status = fork(|| {
        assert!(!teardown::is_enabled());
        assert_eq!(my_helpers(), []);
        assert_eq!(descriptors(), without);
        teardown::disable();
        0
    });
    assert_eq!(status, 0);
    assert!(teardown::is_enabled());
    assert_eq!(my_helpers(), [helper]);
    teardown::disable();
}

fn forked_child_enables_its_own_helper() {
    teardown::enable().unwrap();
    let status = fork(|| {
        teardown::enable().unwrap();
        assert!(teardown::is_enabled());
        assert_eq!(my_helpers().len(), 1);
        teardown::disable();
        assert_no_child_left();
        0
    });
    assert_eq!(status, 0);
    assert_eq!(my_helpers().len(), 1);
    teardown::disable();
}

fn killed_helper_is_replaced_by_enable() {
    let status = fork(|| {
        let memory = anonymous(64 * MIB / page_size());
        fill(memory.range());
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        send(helper, libc::SIGKILL);
        wait_until("its end is known", || !teardown::is_enabled());
        assert!(is_filled(memory.range()));
        teardown::enable().unwrap();
        assert!(teardown::is_enabled());
        assert_ne!(my_helpers()[0], helper);
        teardown::disable();
        assert!(is_filled(memory.range()));
        assert_no_child_left();
        0
    });
    assert_eq!(status, 0);
}

/// Runs as in a container with the usual seccomp profile.
fn without_unshare() {
    let step = |code: u32, jt, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_unshare as u32,
        ),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
        assert_eq!(libc::unshare(libc::CLONE_VM), -1);
    }
    large_victim();
}

fn helper_without_unshare_frees_with_one_task() {
    let mut victim = Victim::with_helper_stopped("without_unshare");
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_ends();
}

fn enable_at_process_limit() {
    drop_privileges();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // The first call registers what is registered once.
    teardown::enable().unwrap();
    teardown::disable();
    let before = (mappings(), descriptors());
    setrlimit(Resource::Nproc, none).unwrap();
    let error = teardown::enable().unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
    assert_eq!(error.errno(), libc::EAGAIN);
    assert!(!teardown::is_enabled());
    assert_eq!((mappings(), descriptors()), before);
}

fn failed_enable_leaves_nothing() {
    in_child_ok("enable_at_process_limit");
}

fn enable_in_pid_namespace_works_from_its_init() -> Completion {
    const REFUSED: i32 = 77;
    let status = fork(|| {
        let user = if is_root() { 0 } else { libc::CLONE_NEWUSER };
        if unsafe { libc::unshare(user | libc::CLONE_NEWPID) } != 0 {
            return REFUSED;
        }
        // The helper would become the init of the new namespace.
        let error = teardown::enable().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // The first child becomes its init instead. (common::fork waits for it.)
        fork(|| {
            assert_eq!(std::process::id(), 1);
            // A process of the namespace that is not its init.
            let inner = unsafe { libc::fork() };
            if inner == 0 {
                let _memory = populated(64);
                let is_enabled = teardown::enable().is_ok();
                unsafe { libc::_exit(i32::from(!is_enabled)) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(inner, &mut status, 0) }, inner);
            assert_eq!(status, 0);
            // Its helper is now this process's child to reap.
            assert!(unsafe { libc::wait(&mut status) } > inner);
            assert_eq!(status, 0);
            assert_no_child_left();
            // The init itself: all processes end with it.
            let _memory = populated(64);
            teardown::enable().unwrap();
            5
        })
    });
    if status == REFUSED {
        return skip("needs a pid namespace of its own, which this user may not make");
    }
    assert_eq!(status, 5);
    Completion::Completed
}
