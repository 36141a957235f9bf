//! `tenure keep`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Completion;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::{Case, Folder, MIB, cases, has_status, pages_in_cache, read_exactly, tenure, told};

pub const ALL: &[(&str, Case)] = cases![
    keep_holds_what_is_read_until_it_is_terminated,
    keep_follows_replaced_and_new_files,
    keep_within_budget_unlocks_what_was_read_first,
    keep_tells_the_service_manager,
    keep_over_memlock_limit_names_the_limit,
    keep_without_descriptors_holds_on,
    keep_of_nothing_exits_with_1,
];

/// Longer than a busy machine needs.
pub const LIMIT: Duration = Duration::from_secs(120);

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running `tenure keep`, killed when it is dropped.
pub struct Keep(pub Child);

impl Keep {
    /// Waits until it is ready; `Err` where it has ended.
    pub fn start(command: &mut Command) -> Result<Self, ExitStatus> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        match line.starts_with("keeping what is used of ") {
            true => Ok(Self(child)),
            false => Err(child.wait().unwrap()),
        }
    }

    fn of(arguments: &[&str]) -> Option<Self> {
        if !may_lock(64 * MIB) {
            return None;
        }
        Some(Self::start(command(arguments).stderr(Stdio::null())).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command
        .arg("keep")
        .args(arguments)
        .env_remove("NOTIFY_SOCKET");
    command
}

pub fn may_lock(bytes: usize) -> bool {
    let limit = getrlimit(Resource::Memlock).current;
    let sets = rustix::thread::capabilities(None).unwrap();
    let may_exceed = sets
        .effective
        .contains(rustix::thread::CapabilitySet::IPC_LOCK);
    may_exceed || limit.is_none_or(|limit| limit >= bytes as u64)
}

/// Ends the case where RLIMIT_MEMLOCK is too small for it.
macro_rules! keep {
    ($arguments:expr) => {
        match Keep::of($arguments) {
            Some(keep) => keep,
            None => return Completion::ignored_with("RLIMIT_MEMLOCK is too small"),
        }
    };
}

/// Returns the bytes that stay in memory when the kernel drops what nobody holds.
fn held_bytes(folder: &Folder, name: &str, pages: std::ops::Range<usize>) -> usize {
    let file = folder.open(name);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let page = tenure::page_size();
    let held = pages_in_cache(&file);
    let pages = pages.start / page..pages.end / page;
    held[pages].iter().filter(|&&is| is).count() * page
}

/// Reads the file until so much of it is held.
fn read_until_held(folder: &Folder, name: &str, len: usize) {
    wait_until("what was read is held", || {
        read_exactly(&folder.open(name), 0..len);
        // The command looks twice a second.
        std::thread::sleep(Duration::from_millis(700));
        held_bytes(folder, name, 0..len) == len
    });
}

fn keep_holds_what_is_read_until_it_is_terminated(folder: &Folder) -> Completion {
    folder.write("a", 4 * MIB);
    let mut keep = keep!(&[folder.text()]);
    assert_eq!(folder.cached_bytes("a"), 0, "nothing is read ahead");
    read_until_held(folder, "a", 2 * MIB);
    keep.signal(Signal::TERM);
    assert_eq!(keep.0.wait().unwrap().code(), Some(0));
    wait_until("all is unlocked", || {
        held_bytes(folder, "a", 0..4 * MIB) == 0
    });
    Completion::Completed
}

fn keep_follows_replaced_and_new_files(folder: &Folder) -> Completion {
    folder.write("tree/a", 2 * MIB);
    let tree = folder.path("tree");
    let _keep = keep!(&[tree.to_str().unwrap()]);
    read_until_held(folder, "tree/a", 2 * MIB);
    folder.write("new", MIB);
    std::fs::rename(folder.path("new"), folder.path("tree/a")).unwrap();
    read_until_held(folder, "tree/a", MIB);
    folder.write("tree/below/b", MIB);
    read_until_held(folder, "tree/below/b", MIB);
    Completion::Completed
}

fn keep_within_budget_unlocks_what_was_read_first(folder: &Folder) -> Completion {
    const LEN: usize = 16 * MIB;
    const BUDGET: usize = 4 * MIB;
    folder.write("a", LEN);
    let _keep = keep!(&["--budget", "4M", folder.text()]);
    // Parts of the file lie far apart, because a whole large folio is kept or not.
    read_until_held(folder, "a", BUDGET / 2);
    wait_until("the budget holds, and what was read last is held", || {
        let file = folder.open("a");
        read_exactly(&file, 8 * MIB..LEN);
        std::thread::sleep(Duration::from_millis(700));
        let first = held_bytes(folder, "a", 0..4 * MIB);
        let last = held_bytes(folder, "a", 8 * MIB..LEN);
        first == 0 && last > 0 && last <= BUDGET
    });
    Completion::Completed
}

fn keep_tells_the_service_manager(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    if !may_lock(64 * MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    let path = folder.path("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let a = folder.path("a");
    let mut command = command(&[a.to_str().unwrap()]);
    let mut keep = Keep::start(command.env("NOTIFY_SOCKET", &path)).unwrap();
    let receive = || {
        let mut bytes = [0; 200];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    assert!(receive().starts_with("READY=1\n"));
    keep.signal(Signal::INT);
    assert_eq!(receive(), "STOPPING=1");
    assert_eq!(keep.0.wait().unwrap().code(), Some(0));
    Completion::Completed
}

fn limited(command: &mut Command, resource: Resource, limit: u64) {
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    let set = move || Ok(setrlimit(resource, limit)?);
    // SAFETY: the closure makes a system call and nothing else.
    unsafe { command.pre_exec(set) };
}

fn keep_over_memlock_limit_names_the_limit(folder: &Folder) -> Completion {
    use std::os::unix::fs::PermissionsExt as _;
    folder.write("a", MIB);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(""), open).unwrap();
    let mut command = command(&[folder.text()]);
    limited(&mut command, Resource::Memlock, 64 << 10);
    if rustix::process::geteuid().is_root() {
        // Without the capability that lifts the limit, but as the owner: others are not told
        // what is resident.
        std::os::unix::fs::chown(folder.path("a"), Some(65534), None).unwrap();
        command.uid(65534);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Completion::ignored_with(format!("as another user: {error}")),
    };
    has_status(&output, 1);
    let told = told(&output);
    assert!(
        told.contains("RLIMIT_MEMLOCK is 64 KiB") && told.contains("LimitMEMLOCK="),
        "{told}"
    );
    Completion::Completed
}

fn keep_without_descriptors_holds_on(folder: &Folder) -> Completion {
    folder.write("tree/a", 2 * MIB);
    if !may_lock(64 * MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    let tree = folder.path("tree");
    let keep = Keep::start(command(&[tree.to_str().unwrap()]).stderr(Stdio::null())).unwrap();
    read_until_held(folder, "tree/a", 2 * MIB);
    // From now on the command can open nothing: it has more open already. (poll needs a limit
    // of as many descriptors as it waits for.)
    let pid = Pid::from_child(&keep.0);
    let none = Rlimit {
        current: Some(2),
        maximum: Some(2),
    };
    rustix::process::prlimit(Some(pid), Resource::Nofile, none).unwrap();
    for name in ["tree/b", "tree/c"] {
        folder.write(name, MIB);
        // It has noticed the file by then, on any machine that is not overloaded; where it
        // has not, the case says less.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(held_bytes(folder, "tree/a", 0..2 * MIB), 2 * MIB);
    }
    keep.signal(Signal::TERM);
    Completion::Completed
}

fn keep_of_nothing_exits_with_1(folder: &Folder) -> Completion {
    let output = tenure(&["keep", folder.text()]);
    has_status(&output, 1);
    assert!(
        told(&output).contains("there is nothing to keep"),
        "{}",
        told(&output)
    );
    let missing = folder.path("missing");
    let output = tenure(&["keep", missing.to_str().unwrap()]);
    has_status(&output, 1);
    assert!(
        told(&output).contains("missing: does not exist"),
        "{}",
        told(&output)
    );
    Completion::Completed
}
