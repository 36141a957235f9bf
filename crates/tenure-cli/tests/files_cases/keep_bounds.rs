//! `tenure keep`: what bounds it also holds for files that come later.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::keep::{Keep, command, may_lock, wait_until};
use super::{Case, Folder, MIB, cases, has_status, told};

pub const ALL: &[(&str, Case)] = cases![
    keep_within_budget_holds_it_over_later_files,
    keep_leaves_out_later_file_without_headroom,
    keep_of_unobservable_files_exits_with_1,
    keep_of_most_files_that_may_be_open_follows_others,
    keep_names_files_beyond_the_limit_on_open_files,
];

/// Starts the command with its messages in a file.
fn start(folder: &Folder, arguments: &[&str]) -> Keep {
    let messages = File::create(folder.path("messages")).unwrap();
    Keep::start(command(arguments).stderr(messages)).unwrap()
}

fn messages(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path("messages")).unwrap()
}

/// Returns the locked bytes of each file in a folder: `Locked:` in smaps.
fn locked_bytes(keep: &Keep, folder: &str) -> Vec<(String, usize)> {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", keep.0.id())).unwrap();
    let mut locked: Vec<(String, usize)> = Vec::new();
    let mut is_inside = false;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if !first.ends_with(':') {
            is_inside = line.contains(folder);
            if let Some((_, name)) = line.split_once(folder)
                && locked.last().is_none_or(|(last, _)| last != name)
            {
                locked.push((name.to_owned(), 0));
            }
        } else if first == "Locked:" && is_inside {
            let kib = line.split_ascii_whitespace().nth(1).unwrap();
            locked.last_mut().unwrap().1 += kib.parse::<usize>().unwrap() << 10;
        }
    }
    locked
}

fn keep_within_budget_holds_it_over_later_files(folder: &Folder) -> Completion {
    const BUDGET: usize = 32 * MIB;
    if !may_lock(128 * MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    folder.write("tree/first", 16 * MIB);
    let tree = folder.path("tree");
    let tree = tree.to_str().unwrap();
    let keep = start(folder, &["--budget", "32M", tree]);
    // Written files are in memory. The part of each is more than the largest folio, which is
    // kept whole or not at all.
    let names = ["a", "b", "c", "d", "e", "f"].map(|name| format!("tree/{name}"));
    for name in &names {
        std::fs::write(folder.path(name), vec![7; 16 * MIB]).unwrap();
    }
    wait_until("each file is followed and has locked pages", || {
        for name in &names {
            std::fs::read(folder.path(name)).unwrap();
        }
        let locked = locked_bytes(&keep, tree);
        let is_locked = |name: &String| {
            let name = name.strip_prefix("tree").unwrap();
            locked
                .iter()
                .any(|(file, bytes)| file == name && *bytes > 0)
        };
        names.iter().all(is_locked)
    });
    wait_until("the budget holds over all files", || {
        let locked = locked_bytes(&keep, tree);
        locked.iter().map(|(_, bytes)| bytes).sum::<usize>() <= BUDGET
    });
    Completion::Completed
}

fn keep_leaves_out_later_file_without_headroom(folder: &Folder) -> Completion {
    if !may_lock(64 * MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    folder.write("tree/first", MIB);
    folder.write("later", MIB);
    let file = File::create(folder.path("huge")).unwrap();
    if let Err(error) = file.set_len(1 << 43) {
        return Completion::ignored_with(format!("the file system has no files of 8 TiB: {error}"));
    }
    let tree = folder.path("tree");
    let keep = start(folder, &[tree.to_str().unwrap()]);
    for name in ["huge", "later"] {
        let to = folder.path(&format!("tree/{name}"));
        std::fs::rename(folder.path(name), to).unwrap();
        wait_until("the command says what it does with the file", || {
            messages(folder).contains(&format!("/tree/{name}: is "))
        });
    }
    let messages = messages(folder);
    assert!(
        messages.contains("/tree/huge: is left out: 8 TiB may have to stay"),
        "{messages}"
    );
    assert!(messages.contains("/tree/later: is followed"), "{messages}");
    let locked = locked_bytes(&keep, tree.to_str().unwrap());
    assert!(locked.iter().all(|(name, _)| name != "/huge"), "{locked:?}");
    Completion::Completed
}

/// Starts the command with a limit on open files that it cannot raise.
fn start_with_few_descriptors(folder: &Folder, tree: &str) -> Keep {
    let messages = File::create(folder.path("messages")).unwrap();
    let mut command = command(&[tree]);
    let limit = |current| Rlimit {
        current: Some(current),
        maximum: Some(64),
    };
    let set = move || Ok(setrlimit(Resource::Nofile, limit(16))?);
    // SAFETY: the closure makes a system call and nothing else.
    unsafe { command.pre_exec(set) };
    Keep::start(command.stderr(messages)).unwrap()
}

fn write_many(folder: &Folder, count: usize) {
    for index in 0..count {
        folder.write(&format!("tree/{index:03}"), 1);
    }
}

fn keep_of_most_files_that_may_be_open_follows_others(folder: &Folder) -> Completion {
    if !may_lock(MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    write_many(folder, 45);
    let tree = folder.path("tree");
    let keep = start_with_few_descriptors(folder, tree.to_str().unwrap());
    for name in ["first", "second"] {
        std::fs::write(folder.path(&format!("tree/{name}")), "later").unwrap();
        wait_until("the command says what it does with the file", || {
            messages(folder).contains(&format!("/tree/{name}: is followed"))
        });
    }
    drop(keep);
    let messages = messages(folder);
    assert!(!messages.contains("open files"), "{messages}");
    Completion::Completed
}

fn keep_names_files_beyond_the_limit_on_open_files(folder: &Folder) -> Completion {
    if !may_lock(MIB) {
        return Completion::ignored_with("RLIMIT_MEMLOCK is too small");
    }
    write_many(folder, 100);
    let tree = folder.path("tree");
    let tree = tree.to_str().unwrap();
    drop(start_with_few_descriptors(folder, tree));
    let expected = format!(
        "tenure: 52 files are left out, from {tree}/048 on: with RLIMIT_NOFILE at 64, 48 files can \
         be kept; raise it (ulimit -Hn, or LimitNOFILE= in a systemd unit)\n"
    );
    assert_eq!(messages(folder), expected);
    Completion::Completed
}

fn keep_of_unobservable_files_exits_with_1(folder: &Folder) -> Completion {
    if !rustix::process::geteuid().is_root() {
        return Completion::ignored_with("only root can run as another user");
    }
    folder.write("a", MIB);
    std::fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(folder.path("a"), Permissions::from_mode(0o644)).unwrap();
    let output = match command(&[folder.text()]).uid(65534).gid(65534).output() {
        Ok(output) => output,
        Err(error) => return Completion::ignored_with(format!("as another user: {error}")),
    };
    has_status(&output, 1);
    assert_eq!(output.stdout, b"");
    let told = told(&output);
    assert!(
        told.contains("/a: ") && told.contains("no file can be kept"),
        "{told}"
    );
    Completion::Completed
}
