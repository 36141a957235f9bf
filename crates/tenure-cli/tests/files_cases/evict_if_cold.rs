//! `tenure evict --if-cold`: files in use stay, and so do all files where that cannot be told.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, setrlimit};
use tenure::Mapping;

use super::{
    Case, Folder, MIB, cases, despite_reclaim, has_status, json, read_exactly, tenure, told,
};

pub const ALL: &[(&str, Case)] = cases![
    evict_if_cold_leaves_open_and_mapped_files,
    evict_if_cold_leaves_files_of_process_that_maps_strange_name,
    evict_if_cold_with_few_descriptors_leaves_open_file,
    evict_if_cold_without_proc_leaves_all_and_exits_with_3,
    evict_if_cold_leaves_files_of_thread_with_own_descriptors,
    evict_if_cold_leaves_files_of_process_without_main_thread,
    evict_if_cold_with_hidden_processes_says_so,
];

/// The variable that makes this program one that holds the file it names.
pub const HOLDER: &str = "TENURE_TEST_HOLDS_FILE";

fn evict_if_cold_leaves_open_and_mapped_files(folder: &Folder) -> Completion {
    for name in ["cold", "open", "mapped"] {
        folder.write(name, MIB);
        read_exactly(&folder.open(name), 0..MIB);
    }
    let open = folder.open("open");
    // The mapping outlives its descriptor.
    let file = folder.open("mapped");
    let mapped = unsafe { Mapping::file(&file) }.map().unwrap();
    drop(file);
    let output = tenure(&["evict", "--if-cold", "--json", folder.text()]);
    has_status(&output, 0);
    let report = json(&output);
    assert_eq!(report["files_in_use"], 2, "{report}");
    assert_eq!(folder.cached_bytes("cold"), 0);
    drop((open, mapped));
    let output = tenure(&["evict", "--if-cold", "--json", folder.text()]);
    let report = json(&output);
    assert_eq!(report["files_in_use"], 0, "{report}");
    assert_eq!(
        folder.cached_bytes("open") + folder.cached_bytes("mapped"),
        0
    );
    Completion::Completed
}

/// Evicts `held`, which something holds, if that is cold; then checks that it stayed.
#[track_caller]
fn stays(folder: &Folder, command: impl Fn() -> Command) -> Output {
    let mut output = None;
    despite_reclaim(|| {
        read_exactly(&folder.open("held"), 0..MIB);
        output = Some(command().output().unwrap());
        let cached = folder.cached_bytes("held");
        let wrong = || format!("{cached} bytes are left: {output:?}");
        (cached == MIB).then_some(()).ok_or_else(wrong)
    });
    output.unwrap()
}

fn evict(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["evict", "--if-cold", "--json"]);
    command.arg(folder.path("held"));
    command.env_remove("TENURE_WITHOUT");
    command
}

/// Whether the one file counted as in use, or as one that may be.
#[track_caller]
fn is_left(output: &Output, figure: &str, status: i32) {
    has_status(output, status);
    let report = json(output);
    assert_eq!(report[figure], 1, "{report}");
    assert_eq!(report["evicted_bytes"], 0, "{report}");
}

fn evict_if_cold_leaves_files_of_process_that_maps_strange_name(folder: &Folder) -> Completion {
    let strange = folder.path("").join(OsStr::from_bytes(b"bad\xffname"));
    if let Err(error) = std::fs::write(&strange, [7]) {
        return Completion::ignored_with(format!("the file system has no such names: {error}"));
    }
    let strange = File::open(strange).unwrap();
    let _mapped = unsafe { Mapping::file(&strange) }.map().unwrap();
    folder.write("held", MIB);
    let held = folder.open("held");
    is_left(&stays(folder, || evict(folder)), "files_in_use", 0);
    let _mapped_too = unsafe { Mapping::file(&held) }.map().unwrap();
    drop(held);
    is_left(&stays(folder, || evict(folder)), "files_in_use", 0);
    Completion::Completed
}

fn evict_if_cold_with_few_descriptors_leaves_open_file(folder: &Folder) -> Completion {
    folder.write("held", MIB);
    let _held = folder.open("held");
    // One descriptor more than the standard streams: none is left beside an open folder.
    let few = || {
        let mut command = evict(folder);
        let limit = Rlimit {
            current: Some(4),
            maximum: Some(4),
        };
        let set = move || Ok(setrlimit(Resource::Nofile, limit)?);
        // SAFETY: the closure makes a system call and nothing else.
        unsafe { command.pre_exec(set) };
        command
    };
    is_left(&stays(folder, few), "files_in_use", 0);
    Completion::Completed
}

/// Runs the closure in the child, in a mount namespace of its own.
fn with_mounts(
    command: impl Fn() -> Command,
    prepare: fn() -> io::Result<()>,
) -> impl Fn() -> Command {
    move || {
        let mut command = command();
        let is_root = rustix::process::geteuid().is_root();
        let prepare = move || {
            let user = if is_root { 0 } else { libc::CLONE_NEWUSER };
            succeeds(unsafe { libc::unshare(libc::CLONE_NEWNS | user) })?;
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            mount(c"none", c"/", c"", flags, c"")?;
            prepare()
        };
        // SAFETY: the closure makes system calls and nothing else.
        unsafe { command.pre_exec(prepare) };
        command
    }
}

fn mount(
    source: &std::ffi::CStr,
    target: &std::ffi::CStr,
    kind: &std::ffi::CStr,
    flags: libc::c_ulong,
    options: &std::ffi::CStr,
) -> io::Result<()> {
    succeeds(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    })
}

fn succeeds(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn evict_if_cold_without_proc_leaves_all_and_exits_with_3(folder: &Folder) -> Completion {
    folder.write("held", MIB);
    let command = with_mounts(
        || evict(folder),
        || mount(c"none", c"/proc", c"tmpfs", 0, c""),
    );
    if let Err(error) = command().arg("--help").output() {
        return Completion::ignored_with(format!("a folder instead of /proc: {error}"));
    }
    let output = stays(folder, command);
    is_left(&output, "files_maybe_in_use", 3);
    let told = told(&output);
    assert!(
        told.contains("the processes cannot be examined (/proc/self: "),
        "{told}"
    );
    Completion::Completed
}

fn evict_if_cold_leaves_files_of_thread_with_own_descriptors(folder: &Folder) -> Completion {
    folder.write("held", MIB);
    let path = folder.path("held");
    let (ready, wait_ready) = mpsc::channel();
    let (end, wait_end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let unshared = succeeds(unsafe { libc::unshare(libc::CLONE_FILES) });
        let held = File::open(path).unwrap();
        ready.send(unshared).unwrap();
        // Until the test drops its end.
        let _ = wait_end.recv();
        drop(held);
    });
    let unshared = wait_ready.recv().unwrap();
    if unshared.is_ok() {
        is_left(&stays(folder, || evict(folder)), "files_in_use", 0);
    }
    drop(end);
    thread.join().unwrap();
    match unshared {
        Ok(()) => Completion::Completed,
        Err(error) => Completion::ignored_with(format!("unshare: {error}")),
    }
}

/// Opens the file, ends the main thread, says so and waits for the end of the input.
pub fn hold_after_main_thread(path: OsString) -> ! {
    std::thread::spawn(move || {
        let held = File::open(path).unwrap();
        let stat = format!("/proc/{}/stat", std::process::id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        println!("holds");
        let _ = io::stdin().read_line(&mut String::new());
        drop(held);
        std::process::exit(0);
    });
    // SAFETY: the call ends this thread, whose stack nobody uses.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended");
}

fn evict_if_cold_leaves_files_of_process_without_main_thread(folder: &Folder) -> Completion {
    struct Holder(Child);
    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    folder.write("held", MIB);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(HOLDER, folder.path("held"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = Holder(command.spawn().unwrap());
    let mut line = String::new();
    let stdout = holder.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "holds\n");
    is_left(&stays(folder, || evict(folder)), "files_in_use", 0);
    Completion::Completed
}

fn evict_if_cold_with_hidden_processes_says_so(folder: &Folder) -> Completion {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() {
        return Completion::ignored_with("only root can mount /proc with hidepid");
    }
    folder.write("held", MIB);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(""), open).unwrap();
    let command = with_mounts(
        || evict(folder),
        || {
            mount(c"proc", c"/proc", c"proc", 0, c"hidepid=2")?;
            succeeds(unsafe { libc::setgid(65534) })?;
            succeeds(unsafe { libc::setuid(65534) })
        },
    );
    let output = match command().output() {
        Ok(output) => output,
        Err(error) => return Completion::ignored_with(format!("hidepid: {error}")),
    };
    let told = told(&output);
    assert!(
        told.contains("/proc is mounted with hidepid=") && told.contains("CAP_SYS_PTRACE"),
        "{told}"
    );
    Completion::Completed
}
