//! `make install` installs a library that programs outside of the tree can use: shared,
//! static, and after it was moved; `make uninstall` removes it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use common::*;
use libtest_mimic::Completion;

fn main() -> ExitCode {
    run(|installed| {
        let tests: &[Test] = &[
            ("shared_program_outside_of_tree_builds_and_runs", shared),
            ("static_program_builds_and_runs", fully_static),
            (
                "archive_without_shared_library_links_into_dynamic_program",
                archive_only,
            ),
            ("installed_files_can_be_moved", moved),
            ("uninstall_removes_all_files", uninstall),
        ];
        trials(installed, tests)
    })
}

const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = (size_t)8 << 20;
    void *memory;
    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0, TENURE_MAP_POPULATE_WRITE) < 0)
        return 1;
    memset(memory, 7, len);
    if (tenure_mvolatile_with(memory, len, 0, TENURE_VOLATILE_OFFER_NOW) < 0)
        return 2;
    if (tenure_mnovolatile(memory, len, NULL, 0, NULL) < 0)
        return 3;
    if (tenure_munmap(memory, len) < 0 || tenure_drain(-1) < 0)
        return 4;
    return strcmp(tenure_version(), VERSION) != 0;
}
"#;

/// Compiles the program in a folder of its own as a user does, with `flags` besides those
/// of `pkg-config`, which gets the arguments `query`.
fn build(
    installed: &Installed,
    prefix: &Path,
    name: &str,
    query: &[&str],
    flags: &[&str],
) -> PathBuf {
    let folder = installed.program(&format!("{name}-folder"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("x.c"), PROGRAM).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .current_dir(&folder)
        .args(["-o", name, "x.c"])
        .args(flags);
    compiler.arg(concat!("-DVERSION=\"", env!("CARGO_PKG_VERSION"), "\""));
    compiler.args(installed.pkg_config(prefix, query));
    ok(&mut compiler);
    folder.join(name)
}

fn shared(installed: &Installed) -> Verdict {
    let prefix = installed.prefix();
    let program = build(installed, &prefix, "shared", &["--cflags", "--libs"], &[]);
    ok(&mut installed.command(&program));
    // The program needs the library by its SONAME.
    let mut readelf = Command::new("readelf");
    let output = ok(readelf.args(["--dynamic", "--wide"]).arg(&program));
    let needed = String::from_utf8(output.stdout)?;
    assert!(needed.contains("[libtenure.so.0]"), "{needed}");
    Ok(Completion::Completed)
}

fn fully_static(installed: &Installed) -> Verdict {
    let query = ["--static", "--cflags", "--libs"];
    let program = build(
        installed,
        &installed.prefix(),
        "static",
        &query,
        &["-static"],
    );
    ok(&mut Command::new(&program));
    Ok(Completion::Completed)
}

fn archive_only(installed: &Installed) -> Verdict {
    let prefix = installed.program("archive-only");
    installed.make("install", &prefix, Path::new(""));
    for library in fs::read_dir(prefix.join("lib"))? {
        let path = library?.path();
        if path.to_string_lossy().contains(".so") {
            fs::remove_file(path)?;
        }
    }
    let query = ["--static", "--cflags", "--libs"];
    let program = build(installed, &prefix, "archived", &query, &[]);
    ok(&mut Command::new(&program));
    Ok(Completion::Completed)
}

fn moved(installed: &Installed) -> Verdict {
    let staging = installed.program("staging");
    installed.make("install", Path::new("/opt/tenure"), &staging);
    let elsewhere = installed.program("elsewhere");
    fs::rename(staging.join("opt/tenure"), &elsewhere)?;
    let program = build(installed, &elsewhere, "moved", &["--cflags", "--libs"], &[]);
    let mut command = Command::new(&program);
    ok(command.env("LD_LIBRARY_PATH", elsewhere.join("lib")));
    Ok(Completion::Completed)
}

fn uninstall(installed: &Installed) -> Verdict {
    let prefix = installed.program("gone");
    let nowhere = Path::new("");
    installed.make("install", &prefix, nowhere);
    assert!(prefix.join("share/man/man7/tenure.7").is_file());
    assert!(prefix.join("share/man/man3/tenure_mlock.3").is_file());
    installed.make("uninstall", &prefix, nowhere);
    assert_eq!(files_below(&prefix), Vec::<PathBuf>::new());
    Ok(Completion::Completed)
}

/// Returns the files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_below(folder)));
    files
}
