//! `tenure evict`.

use std::fs::OpenOptions;
use std::io::Write as _;

use libtest_mimic::Completion;
use tenure::{LockMode, Mapping};

use super::{Case, Folder, MIB, cases, has_status, json, read_exactly, tenure};

pub const ALL: &[(&str, Case)] = cases![
    evict_drops_a_tree_and_loses_nothing,
    evict_says_which_process_maps_what_stayed,
    evict_of_missing_path_exits_with_1,
];

fn evict_drops_a_tree_and_loses_nothing(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    folder.write("below/b", MIB);
    read_exactly(&folder.open("a"), 0..MIB);
    let mut file = OpenOptions::new()
        .append(true)
        .open(folder.path("below/b"))
        .unwrap();
    file.write_all(b"dirty").unwrap();
    let output = tenure(&["evict", "--json", folder.text()]);
    has_status(&output, 0);
    assert_eq!(json(&output)["files"], 2);
    assert_eq!(
        (folder.cached_bytes("a"), folder.cached_bytes("below/b")),
        (0, 0)
    );
    assert!(
        std::fs::read(folder.path("below/b"))
            .unwrap()
            .ends_with(b"\x07dirty")
    );
    Completion::Completed
}

fn evict_says_which_process_maps_what_stayed(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    let file = folder.open("a");
    let mapping = unsafe { Mapping::file(&file) }.map().unwrap();
    drop(file);
    mapping.lock(.., LockMode::Now).unwrap();
    let output = tenure(&["evict", folder.text()]);
    has_status(&output, 3);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = format!(
        "/a: 1 MiB stayed: mapped by process {} (",
        std::process::id()
    );
    assert!(text.contains(&wanted), "{wanted}\n{text}");
    drop(mapping);
    has_status(&tenure(&["evict", folder.text()]), 0);
    assert_eq!(folder.cached_bytes("a"), 0);
    Completion::Completed
}

fn evict_of_missing_path_exits_with_1(folder: &Folder) -> Completion {
    let missing = folder.path("missing");
    has_status(&tenure(&["evict", missing.to_str().unwrap()]), 1);
    Completion::Completed
}
