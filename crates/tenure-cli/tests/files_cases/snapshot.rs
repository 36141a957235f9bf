//! `tenure snapshot` and `tenure restore`.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;

use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    Case, Folder, MIB, cases, despite_reclaim, drop_cache, has_status, json, pages_in_cache,
    read_exactly, tenure, told,
};

pub const ALL: &[(&str, Case)] = cases![
    restore_reads_the_ranges_of_the_snapshot,
    restore_skips_and_names_changed_files,
    restore_refuses_other_files_and_versions,
    snapshot_takes_over_what_a_killed_one_has_left,
];

fn restore_reads_the_ranges_of_the_snapshot(folder: &Folder) -> Completion {
    folder.write("tree/a", 4 * MIB);
    folder.write("tree/cold", MIB);
    let (snapshot, tree) = (folder.path("snapshot"), folder.path("tree"));
    let snapshot = snapshot.to_str().unwrap();
    despite_reclaim(|| {
        drop_cache(&folder.open("tree/a")).unwrap();
        read_exactly(&folder.open("tree/a"), 0..MIB);
        read_exactly(&folder.open("tree/a"), 2 * MIB..3 * MIB);
        let before = pages_in_cache(&folder.open("tree/a"));
        has_status(&tenure(&["snapshot", snapshot, tree.to_str().unwrap()]), 0);
        drop_cache(&folder.open("tree/a")).unwrap();
        let output = tenure(&["restore", "--json", snapshot]);
        has_status(&output, 0);
        assert_eq!(json(&output)["files"], 1, "the other file was not resident");
        let after = pages_in_cache(&folder.open("tree/a"));
        (before == after)
            .then_some(())
            .ok_or("the ranges differ".to_owned())
    });
    assert_eq!(folder.cached_bytes("tree/cold"), 0);
    Completion::Completed
}

fn restore_skips_and_names_changed_files(folder: &Folder) -> Completion {
    for name in ["tree/a", "tree/changed", "tree/gone"] {
        folder.write(name, MIB);
        read_exactly(&folder.open(name), 0..MIB);
    }
    let (snapshot, tree) = (folder.path("snapshot"), folder.path("tree"));
    let snapshot = snapshot.to_str().unwrap();
    has_status(&tenure(&["snapshot", snapshot, tree.to_str().unwrap()]), 0);
    folder.write("tree/changed", MIB + 1);
    std::fs::remove_file(folder.path("tree/gone")).unwrap();
    drop_cache(&folder.open("tree/a")).unwrap();
    let output = tenure(&["restore", "--json", snapshot]);
    has_status(&output, 3);
    assert_eq!(json(&output)["files"], 1);
    let told = told(&output);
    assert!(
        told.contains("/tree/changed: has changed since the snapshot"),
        "{told}"
    );
    assert!(
        told.contains("/tree/gone: does not exist, and is skipped"),
        "{told}"
    );
    assert_eq!(folder.cached_bytes("tree/changed"), 0);
    Completion::Completed
}

fn snapshot_takes_over_what_a_killed_one_has_left(folder: &Folder) -> Completion {
    folder.write("tree/a", MIB);
    let (snapshot, tree) = (folder.path("snapshot"), folder.path("tree"));
    let snapshot = snapshot.to_str().unwrap();
    let arguments = ["snapshot", snapshot, tree.to_str().unwrap()];
    let names = || {
        let entries = std::fs::read_dir(folder.path("")).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort_unstable();
        names
    };
    for _ in 0..3 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        // The first byte that it writes to a file ends it: SIGXFSZ.
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let set = move || {
            setrlimit(Resource::Core, none)?;
            Ok(setrlimit(Resource::Fsize, none)?)
        };
        // SAFETY: the closure makes system calls and nothing else.
        unsafe { command.args(arguments).pre_exec(set) };
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGXFSZ), "{output:?}");
        assert_eq!(names(), [".tenure-snapshot.part", "tree"]);
    }
    has_status(&tenure(&arguments), 0);
    assert_eq!(names(), ["snapshot", "tree"]);
    has_status(&tenure(&["restore", snapshot]), 0);
    Completion::Completed
}

fn restore_refuses_other_files_and_versions(folder: &Folder) -> Completion {
    for (text, wanted) in [
        (
            "{\"format\":\"tenure-snapshot\",\"version\":2}\n",
            "is a snapshot of version 2",
        ),
        (
            "{\"format\":\"other\",\"version\":1}\n",
            "is no snapshot of tenure",
        ),
        ("hello", "is no snapshot of tenure"),
        ("", "is no snapshot of tenure"),
    ] {
        std::fs::write(folder.path("snapshot"), text).unwrap();
        let output = tenure(&["restore", folder.path("snapshot").to_str().unwrap()]);
        has_status(&output, 1);
        assert!(told(&output).contains(wanted), "{}", told(&output));
    }
    // No line ends.
    let output = tenure(&["restore", "/dev/zero"]);
    has_status(&output, 1);
    assert_eq!(
        told(&output),
        "tenure: /dev/zero: is no snapshot of tenure\n"
    );
    let missing = folder.path("missing");
    has_status(&tenure(&["restore", missing.to_str().unwrap()]), 1);
    // A line that is none does not keep the others from being restored.
    folder.write("a", MIB);
    read_exactly(&folder.open("a"), 0..MIB);
    let (snapshot, a) = (folder.path("snapshot"), folder.path("a"));
    has_status(
        &tenure(&["snapshot", snapshot.to_str().unwrap(), a.to_str().unwrap()]),
        0,
    );
    let mut text = std::fs::read_to_string(&snapshot).unwrap();
    text = text.replacen('\n', "\nbroken\n", 1);
    std::fs::write(&snapshot, text).unwrap();
    let output = tenure(&["restore", "--json", snapshot.to_str().unwrap()]);
    has_status(&output, 1);
    assert!(told(&output).contains("line 2: "), "{}", told(&output));
    assert_eq!(json(&output)["files"], 1);
    Completion::Completed
}
