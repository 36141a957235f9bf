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
            (
                "libraries_in_a_folder_of_their_own_are_found",
                library_folder,
            ),
            ("uninstall_leaves_nothing", uninstall),
            (
                "uninstall_leaves_what_it_has_not_installed",
                uninstall_beside_others,
            ),
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

fn library_folder(installed: &Installed) -> Verdict {
    let staging = installed.program("multiarch");
    let folder = Path::new("/opt/tenure/lib/triplet");
    let variables = [("LIBDIR", folder)];
    installed.make_with("install", Path::new("/opt/tenure"), &staging, &variables);
    let prefix = installed.program("multiarch-moved");
    fs::rename(staging.join("opt/tenure"), &prefix)?;
    let libraries = prefix.join("lib/triplet");
    let mut query = Command::new("pkg-config");
    query.args(["--variable=libdir", "tenure"]);
    query.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let told = String::from_utf8(ok(&mut query).stdout)?;
    assert_eq!(fs::canonicalize(told.trim())?, fs::canonicalize(libraries)?);
    Ok(Completion::Completed)
}

fn uninstall(installed: &Installed) -> Verdict {
    // The folders above the prefix are made as well.
    let above = installed.program("above");
    let prefix = above.join("gone");
    let nowhere = Path::new("");
    for _ in 0..2 {
        installed.make("install", &prefix, nowhere);
        assert!(prefix.join("share/man/man7/tenure.7").is_file());
        assert!(prefix.join("share/man/man3/tenure_mlock.3").is_file());
    }
    installed.make("uninstall", &prefix, nowhere);
    assert!(!above.exists(), "{:?}", files_below(&above));

    installed.make("install", Path::new("/opt/tenure"), &above);
    installed.make("uninstall", Path::new("/opt/tenure"), &above);
    assert_eq!(fs::read_dir(&above)?.count(), 0);
    Ok(Completion::Completed)
}

fn uninstall_beside_others(installed: &Installed) -> Verdict {
    let prefix = installed.program("shared-prefix");
    let nowhere = Path::new("");
    // An empty folder, and one with a file, were there before; a file comes later.
    fs::create_dir_all(prefix.join("include"))?;
    fs::create_dir_all(prefix.join("lib"))?;
    fs::write(prefix.join("lib/other"), "")?;
    installed.make("install", &prefix, nowhere);
    fs::write(prefix.join("share/man/man3/other.3"), "")?;
    installed.make("uninstall", &prefix, nowhere);
    let mut left = files_below(&prefix);
    left.sort();
    assert_eq!(
        left,
        ["lib/other", "share/man/man3/other.3"].map(|path| prefix.join(path))
    );
    assert!(prefix.join("include").is_dir());
    assert!(!prefix.join("share/man/man7").exists());
    Ok(Completion::Completed)
}

/// Returns the files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_below(folder)));
    files
}
