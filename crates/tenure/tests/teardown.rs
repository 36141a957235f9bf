//! teardown: what a parent, other processes and the program itself see of the
//! helper. A stopped helper shows what does not have to wait for it.

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
    a_parent_need_not_wait_for_memory,
    a_dump_of_memory_is_written,
    several_tasks_free,
    descriptors_are_closed_at_once,
    a_robust_mutex_is_handed_on_at_once,
    the_helper_is_confined,
    plain_wait_does_not_see_the_helper,
    exec_ends_the_helper,
    exec_after_closing_everything_ends_the_helper,
    closing_everything_does_no_harm,
    a_child_before_exec_keeps_its_memory,
    a_child_by_bare_clone_does_not_hold_the_helper,
    the_enabling_thread_may_end,
    enabled_once_by_many,
    disable_leaves_nothing,
    the_next_descriptor_is_what_it_would_have_been,
    a_child_has_no_helper,
    a_child_can_have_its_own,
    a_killed_helper_can_be_replaced,
    where_unshare_is_refused_one_task_frees,
    without_room_for_a_process_nothing_changes,
    pid_namespaces;
    children:
    large_victim, enabled_by_a_thread, dumping_victim, exec_cat, close_all_and_exec_cat,
    listening_victim, child_before_exec, bare_clone, without_unshare, refused_a_process
}

const MIB: usize = 1 << 20;
const VICTIM_MIB: usize = 512;

/// A function of this file in a process of its own, which has a helper.
struct Victim {
    process: Child,
    said: BufReader<ChildStdout>,
    helper: i32,
}

impl Victim {
    /// Waits until it has said that it is ready, and finds its helper.
    fn new(name: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--child", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let helper = helper_of(process.id() as i32).expect("a helper");
        Self {
            process,
            said,
            helper,
        }
    }

    /// The same, with the helper stopped: it cannot do a thing.
    fn with_helper_stopped(name: &str) -> Self {
        let victim = Self::new(name);
        send(victim.helper, libc::SIGSTOP);
        until("the helper stops", || state(victim.helper) == Some('T'));
        victim
    }

    fn tell(&mut self, word: &str) {
        let mut input = self.process.stdin.as_ref().unwrap();
        writeln!(input, "{word}").unwrap();
    }

    fn helper_rss_kib(&self) -> u64 {
        rss_kib(self.helper)
    }

    fn assert_helper_goes(&self) {
        // It may have been stopped, and may have gone.
        unsafe { libc::kill(self.helper, libc::SIGCONT) };
        until_gone(self.helper);
    }
}

/// A test that fails leaves nobody behind, stopped or not, who would hold the
/// runner's output open.
impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if stat(self.helper).is_some_and(|(name, _)| name == "tenure-teardown") {
            send(self.helper, libc::SIGKILL);
        }
    }
}

/// What a victim says, and what it is told.
fn ready() {
    println!("ready");
}

fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn send(pid: i32, signal: i32) {
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// The fields of `/proc/PID/stat` behind the name: state, parent, group,
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
fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_so(is_so), "{what}: not yet");
}

fn becomes_so(mut is_so: impl FnMut() -> bool) -> bool {
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
fn until_gone(pid: i32) {
    assert!(goes(pid), "the helper goes: not yet");
}

/// A zombie has no memory any more; reaping it is up to init.
fn goes(pid: i32) -> bool {
    becomes_so(|| matches!(state(pid), None | Some('Z' | 'X')))
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

fn end_as_told() {
    match told().as_str() {
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
    end_as_told();
}

fn no_core() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).unwrap();
}

fn a_parent_need_not_wait_for_memory() {
    for end in ["kill", "exit", "abort"] {
        let mut victim = Victim::with_helper_stopped("large_victim");
        match end {
            "kill" => victim.process.kill().unwrap(),
            _ => victim.tell(end),
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
        victim.assert_helper_goes();
    }
}

fn dumping_victim() {
    let directory = told();
    std::env::set_current_dir(directory).unwrap();
    let no_limit = Rlimit {
        current: None,
        maximum: None,
    };
    setrlimit(Resource::Core, no_limit).unwrap();
    teardown::enable().unwrap();
    ready();
    end_as_told();
}

fn a_dump_of_memory_is_written() -> Completion {
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
    until_gone(helper);
    Completion::Completed
}

fn several_tasks_free() -> Completion {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("needs two CPUs");
    }
    // A look may come too late.
    let seen = (0..10).any(|_| {
        let mut victim = Victim::new("large_victim");
        victim.process.kill().unwrap();
        let mut most = 0;
        while !matches!(state(victim.helper), None | Some('Z' | 'X')) {
            most = most.max(status_of(victim.helper, "Threads").parse().unwrap_or(0));
        }
        victim.process.wait().unwrap();
        most > 1
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
    end_as_told();
}

fn descriptors_are_closed_at_once() {
    let mut victim = Victim::with_helper_stopped("listening_victim");
    let address = address(victim.process.id());
    drop(UnixStream::connect_addr(&address).unwrap());
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let error = UnixStream::connect_addr(&address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    // Its standard output was a pipe.
    let mut rest = Vec::new();
    assert_eq!(victim.said.read_to_end(&mut rest).unwrap(), 0);
    victim.assert_helper_goes();
}

fn a_robust_mutex_is_handed_on_at_once() {
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
    until("the helper stops", || state(helper) == Some('T'));
    assert_eq!(unsafe { libc::pthread_mutex_trylock(mutex) }, libc::EBUSY);
    send(pid, libc::SIGKILL);
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    assert_eq!(unsafe { libc::pthread_mutex_lock(mutex) }, libc::EOWNERDEAD);
    send(helper, libc::SIGCONT);
    until_gone(helper);
}

fn the_helper_is_confined() {
    teardown::enable().unwrap();
    let helper = my_helpers()[0];
    assert_eq!(status_of(helper, "Seccomp"), "2");
    assert_eq!(status_of(helper, "NoNewPrivs"), "1");
    // All but SIGKILL and SIGSTOP.
    assert_eq!(status_of(helper, "SigBlk"), "fffffffffffbfeff");
    let (_, fields) = stat(helper).unwrap();
    assert_eq!(fields[2..4], [helper.to_string(), helper.to_string()]);
    let fds = std::fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
    assert_eq!(fds.count(), 3);
    let root = std::fs::read_link(format!("/proc/{helper}/cwd")).unwrap();
    assert_eq!(root.to_str(), Some("/"));
    teardown::disable();
}

fn plain_wait_does_not_see_the_helper() {
    let status = fork(|| {
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        let child = unsafe { libc::fork() };
        if child == 0 {
            unsafe { libc::_exit(3) };
        }
        let wait = || {
            let pid = unsafe { libc::wait(std::ptr::null_mut()) };
            (pid, std::io::Error::last_os_error().raw_os_error())
        };
        assert_eq!(wait().0, child);
        assert_eq!(wait(), (-1, Some(libc::ECHILD)));
        // Nor does it see one that is dead.
        send(helper, libc::SIGKILL);
        until_gone(helper);
        assert_eq!(wait(), (-1, Some(libc::ECHILD)));
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
    told();
    panic!("{}", Command::new("cat").exec());
}

fn exec_ends_the_helper() {
    let mut victim = Victim::with_helper_stopped("exec_cat");
    victim.tell("now");
    let pid = victim.process.id() as i32;
    until("the other program runs", || {
        stat(pid).is_some_and(|(name, _)| name == "cat")
    });
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_goes();
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
}

fn close_all_and_exec_cat() {
    teardown::enable().unwrap();
    ready();
    told();
    close_from_3();
    panic!("{}", Command::new("cat").exec());
}

fn close_from_3() {
    assert_eq!(
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) },
        0
    );
}

fn exec_after_closing_everything_ends_the_helper() {
    let mut victim = Victim::new("close_all_and_exec_cat");
    victim.tell("now");
    until_gone(victim.helper);
    assert!(victim.process.try_wait().unwrap().is_none());
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
}

fn closing_everything_does_no_harm() {
    let status = fork(|| {
        let memory = anonymous(64 * MIB / page_size());
        fill(memory.range());
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        close_from_3();
        // The helper looks once more than once meanwhile.
        std::thread::sleep(Duration::from_millis(2500));
        assert!(is_filled(memory.range()));
        assert!(teardown::is_enabled());
        assert_eq!(my_helpers(), [helper]);
        // The lifeline's number may be somebody's by now.
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

/// Like `posix_spawn`, but the child takes its time before exec.
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
            false => b"lost\n",
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

fn a_child_before_exec_keeps_its_memory() {
    let mut victim = Victim::new("child_before_exec");
    let pid = victim.process.id() as i32;
    let has_child = || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap().split_whitespace().count() == 2
    };
    until("the child is there", has_child);
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let mut line = String::new();
    victim.said.read_line(&mut line).unwrap();
    assert_eq!(line, "intact\n");
    victim.assert_helper_goes();
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
    end_as_told();
}

fn a_child_by_bare_clone_does_not_hold_the_helper() {
    let mut victim = Victim::new("bare_clone");
    let mut line = String::new();
    victim.said.read_line(&mut line).unwrap();
    let child = line.trim().parse().unwrap();
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let has_gone = goes(victim.helper);
    // It has the helper's descriptor, and lives.
    let lives = becomes_so(|| state(child) == Some('S'));
    send(child, libc::SIGKILL);
    assert!(lives);
    assert!(has_gone);
}

fn enabled_by_a_thread() {
    let _memory = populated(VICTIM_MIB);
    std::thread::spawn(|| teardown::enable().unwrap())
        .join()
        .unwrap();
    // Its stack and its thread-local storage go too, if a helper does not keep
    // them: glibc does, for threads to come.
    for _ in 0..100 {
        std::thread::spawn(|| ()).join().unwrap();
    }
    assert!(teardown::is_enabled());
    ready();
    end_as_told();
}

fn the_enabling_thread_may_end() {
    let mut victim = Victim::with_helper_stopped("enabled_by_a_thread");
    send(victim.helper, libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(100));
    until("the helper waits", || state(victim.helper) == Some('S'));
    send(victim.helper, libc::SIGSTOP);
    until("the helper stops", || state(victim.helper) == Some('T'));
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_goes();
}

fn enabled_once_by_many() {
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

fn disable_leaves_nothing() {
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

fn the_next_descriptor_is_what_it_would_have_been() {
    let next = || {
        let file = std::fs::File::open("/dev/null").unwrap();
        file.as_raw_fd()
    };
    let status = fork(move || {
        let without = next();
        teardown::enable().unwrap();
        assert_eq!(next(), without);
        teardown::disable();
        // Where there are no such high numbers.
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

fn a_child_has_no_helper() {
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

fn a_child_can_have_its_own() {
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

fn a_killed_helper_can_be_replaced() {
    let status = fork(|| {
        let memory = anonymous(64 * MIB / page_size());
        fill(memory.range());
        teardown::enable().unwrap();
        let helper = my_helpers()[0];
        send(helper, libc::SIGKILL);
        until("its end is known", || !teardown::is_enabled());
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

/// As in a container with the usual seccomp profile.
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

fn where_unshare_is_refused_one_task_frees() {
    let mut victim = Victim::with_helper_stopped("without_unshare");
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    assert!(victim.helper_rss_kib() >= (VICTIM_MIB * 1024) as u64);
    victim.assert_helper_goes();
}

fn refused_a_process() {
    give_up_privileges();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Registers what is registered once.
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

fn without_room_for_a_process_nothing_changes() {
    in_child_ok("refused_a_process");
}

fn pid_namespaces() -> Completion {
    const REFUSED: i32 = 77;
    let status = fork(|| {
        let user = if is_root() { 0 } else { libc::CLONE_NEWUSER };
        if unsafe { libc::unshare(user | libc::CLONE_NEWPID) } != 0 {
            return REFUSED;
        }
        // The helper would be the first of the new namespace.
        let error = teardown::enable().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // The first child is it instead. (common::fork waits for it.)
        fork(|| {
            assert_eq!(std::process::id(), 1);
            // A process of the namespace that is not its first.
            let inner = unsafe { libc::fork() };
            if inner == 0 {
                let _memory = populated(64);
                let is_enabled = teardown::enable().is_ok();
                unsafe { libc::_exit(i32::from(!is_enabled)) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(inner, &mut status, 0) }, inner);
            assert_eq!(status, 0);
            // Its helper is this one's to reap now.
            assert!(unsafe { libc::wait(&mut status) } > inner);
            assert_eq!(status, 0);
            assert_no_child_left();
            // The first process itself: all end with it.
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
