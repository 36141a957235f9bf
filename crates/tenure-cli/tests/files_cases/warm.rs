//! `tenure warm`.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libtest_mimic::Completion;

use super::{
    Case, Folder, MIB, cases, despite_reclaim, drop_cache, has_status, json, tenure, told,
};

pub const ALL: &[(&str, Case)] = cases![
    warm_reads_all_files_of_a_tree,
    warm_with_patterns_reads_what_matches,
    warm_over_budget_exits_with_3,
    warm_of_range_reads_the_range,
    warm_reads_hard_links_once_and_no_symbolic_links,
    warm_follows_symbolic_links_that_are_named_or_asked_for,
    warm_says_that_a_link_leads_nowhere,
    warm_names_what_it_cannot_read_and_goes_on,
    warm_names_unreadable_file_and_exits_with_1,
    warm_of_wrong_command_line_exits_with_2,
    warm_without_json_is_one_line,
];

fn read_bytes(arguments: &[&str]) -> u64 {
    let output = tenure(&[&["warm", "--json"], arguments].concat());
    has_status(&output, 0);
    assert_eq!(told(&output), "");
    let report = json(&output);
    let figure = |name: &str| report[name].as_u64().unwrap();
    figure("read_bytes") + figure("resident_before_bytes")
}

fn warm_reads_all_files_of_a_tree(folder: &Folder) -> Completion {
    for name in ["a", ".hidden", "below/.gitignore", "below/c"] {
        folder.write(name, MIB);
    }
    despite_reclaim(|| {
        assert_eq!(read_bytes(&[folder.text()]), 4 * MIB as u64);
        let names = ["a", ".hidden", "below/.gitignore", "below/c"];
        let cached: Vec<_> = names.iter().map(|name| folder.cached_bytes(name)).collect();
        let is_right = cached == [MIB; 4];
        is_right.then_some(()).ok_or(format!("{cached:?}"))
    });
    Completion::Completed
}

fn warm_with_patterns_reads_what_matches(folder: &Folder) -> Completion {
    for name in ["a.bin", "a.txt", "below/b.bin", "left/c.bin"] {
        folder.write(name, MIB);
    }
    let read = |arguments: &[&str]| read_bytes(&[arguments, &[folder.text()]].concat());
    assert_eq!(
        read(&["--include", "*.bin", "--exclude", "left"]),
        2 * MIB as u64
    );
    assert_eq!(folder.cached_bytes("a.txt"), 0);
    assert_eq!(folder.cached_bytes("left/c.bin"), 0);
    assert_eq!(read(&["--exclude", "/left/*.bin"]), 3 * MIB as u64);
    assert_eq!(read(&["--include", "below/*"]), MIB as u64);
    // A file that is named is taken in any case.
    let named = folder.path("a.txt");
    let named = ["--include", "*.bin", named.to_str().unwrap()];
    assert_eq!(read_bytes(&named), MIB as u64);
    Completion::Completed
}

fn warm_over_budget_exits_with_3(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    folder.write("b", MIB);
    despite_reclaim(|| {
        for name in ["a", "b"] {
            drop_cache(&folder.open(name)).unwrap();
        }
        let output = tenure(&["warm", "--json", "--budget", "1.5M", folder.text()]);
        has_status(&output, 3);
        let report = json(&output);
        assert_eq!(report["stopped_by"], "budget");
        assert_eq!(report["read_bytes"], 3 * MIB / 2);
        assert_eq!(report["left_bytes"], MIB / 2);
        assert!(
            told(&output).contains("512 KiB were left out: the budget"),
            "{}",
            told(&output)
        );
        let cached = [folder.cached_bytes("a"), folder.cached_bytes("b")];
        (cached == [MIB, MIB / 2])
            .then_some(())
            .ok_or(format!("{cached:?}"))
    });
    Completion::Completed
}

fn warm_of_range_reads_the_range(folder: &Folder) -> Completion {
    folder.write("a", 3 * MIB);
    assert_eq!(
        read_bytes(&["--range", "1M..2M", folder.text()]),
        MIB as u64
    );
    assert_eq!(read_bytes(&["--range", "4M..", folder.text()]), 0);
    Completion::Completed
}

fn warm_reads_hard_links_once_and_no_symbolic_links(folder: &Folder) -> Completion {
    folder.write("tree/a", MIB);
    folder.write("outside", MIB);
    std::fs::hard_link(folder.path("tree/a"), folder.path("tree/b")).unwrap();
    symlink(folder.path("outside"), folder.path("tree/link")).unwrap();
    symlink(folder.path("nowhere"), folder.path("tree/dangling")).unwrap();
    let tree = folder.path("tree");
    let tree = tree.to_str().unwrap();
    assert_eq!(read_bytes(&[tree]), MIB as u64);
    assert_eq!(folder.cached_bytes("outside"), 0);
    assert_eq!(read_bytes(&[tree, tree]), MIB as u64);
    Completion::Completed
}

fn warm_says_that_a_link_leads_nowhere(folder: &Folder) -> Completion {
    folder.write("tree/a", MIB);
    let link = folder.path("tree/link");
    std::os::unix::fs::symlink("absent", &link).unwrap();
    let expected = format!(
        "tenure: {}: is a symbolic link to nothing\n",
        link.display()
    );
    let tree = folder.path("tree");
    let output = tenure(&["warm", "--json", "--follow", tree.to_str().unwrap()]);
    has_status(&output, 0);
    assert_eq!(
        (json(&output)["files"].as_u64(), told(&output)),
        (Some(1), expected.clone())
    );
    let output = tenure(&["warm", "--json", link.to_str().unwrap()]);
    has_status(&output, 1);
    assert_eq!(told(&output), expected);
    Completion::Completed
}

fn warm_follows_symbolic_links_that_are_named_or_asked_for(folder: &Folder) -> Completion {
    folder.write("outside", MIB);
    std::fs::create_dir(folder.path("tree")).unwrap();
    symlink(folder.path("outside"), folder.path("tree/link")).unwrap();
    let (tree, link) = (folder.path("tree"), folder.path("tree/link"));
    assert_eq!(read_bytes(&[link.to_str().unwrap()]), MIB as u64);
    assert_eq!(
        read_bytes(&["--follow", tree.to_str().unwrap()]),
        MIB as u64
    );
    Completion::Completed
}

fn warm_names_what_it_cannot_read_and_goes_on(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    let pipe = folder.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let (pipe, missing, a) = (pipe, folder.path("missing"), folder.path("a"));
    let paths = [&pipe, &missing, &a].map(|path| path.to_str().unwrap());
    let output = tenure(&[&["warm", "--json", "/dev/null"][..], &paths].concat());
    has_status(&output, 1);
    let report = json(&output);
    assert_eq!(report["failed_files"], 3);
    assert_eq!(report["files"], 1);
    let told = told(&output);
    for line in [
        "tenure: /dev/null: is a device, which has no pages of a file".to_owned(),
        format!(
            "tenure: {}: is a pipe, which has no pages of a file",
            paths[0]
        ),
        format!("tenure: {}: does not exist", paths[1]),
    ] {
        assert!(told.lines().any(|told| told == line), "{line}\n{told}");
    }
    Completion::Completed
}

fn warm_names_unreadable_file_and_exits_with_1(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    folder.write("b", MIB);
    std::fs::set_permissions(folder.path("a"), Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["warm", "--json", folder.text()]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534);
    }
    let output = match command.output() {
        Ok(output) => output,
        // The folder of the program may be closed to other users.
        Err(error) => return Completion::ignored_with(format!("as another user: {error}")),
    };
    has_status(&output, 1);
    let told = told(&output);
    assert!(told.contains("/a: permission denied"), "{told}");
    assert_eq!(json(&output)["files"], 1);
    Completion::Completed
}

fn warm_of_wrong_command_line_exits_with_2(folder: &Folder) -> Completion {
    for wrong in [
        &["--budget", "0"][..],
        &["--budget", "x"],
        &["--range", "2M..1M"],
        &["--readers", "0"],
    ] {
        let output = tenure(&[&["warm"], wrong, &[folder.text()]].concat());
        has_status(&output, 2);
    }
    has_status(&tenure(&["warm"]), 2);
    let output = tenure(&["warm", "--include", "[", folder.text()]);
    has_status(&output, 1);
    assert!(told(&output).contains("--include ["), "{}", told(&output));
    Completion::Completed
}

fn warm_without_json_is_one_line(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    let output = tenure(&["warm", folder.text()]);
    has_status(&output, 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.lines().count() == 1 && text.contains("1 files"),
        "{text}"
    );
    // No progress bar where standard error is no terminal.
    assert_eq!(told(&output), "");
    Completion::Completed
}
