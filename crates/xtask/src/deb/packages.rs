//! The packages: which installed file goes into which, and what each says of itself.

use std::path::Path;

use anyhow::{Context as _, Result};

/// The source package, and the name of the command's.
pub const SOURCE: &str = "tenure";

/// A Debian package.
#[derive(Debug, PartialEq)]
pub struct Package {
    pub name: &'static str,
    pub section: &'static str,
    /// Whether packages of several architectures may be installed side by side.
    pub is_multi_arch: bool,
    /// Its needs besides the libraries that its programs are linked to; `=` stands for
    /// the package's own version.
    pub depends: &'static [&'static str],
    pub summary: &'static str,
    pub description: &'static str,
    /// The files that it takes: the folder below /usr, and the beginning of the name. A
    /// folder of libraries is the multiarch folder.
    files: &'static [(&'static str, &'static str)],
}

const LIBRARIES: &str = "lib/MULTIARCH";

pub const PACKAGES: [Package; 4] = [
    Package {
        name: "libtenure0",
        section: "libs",
        is_multi_arch: true,
        depends: &[],
        summary: "control over the life of memory: shared library",
        description: "\
tenure gives a program control over when its memory is faulted in, stays
resident, may be reclaimed and is released, on stock Linux kernels.
.
This package has the shared library for programs in C and C++.",
        files: &[(LIBRARIES, "libtenure.so.")],
    },
    Package {
        name: "libtenure-dev",
        section: "libdevel",
        is_multi_arch: true,
        depends: &["libtenure0 =", "libc6-dev"],
        summary: "control over the life of memory: development files",
        description: "\
tenure gives a program control over when its memory is faulted in, stays
resident, may be reclaimed and is released, on stock Linux kernels.
.
This package has the headers for C and C++, the static library, and the
manual pages of the functions.",
        files: &[
            ("include", "tenure.h"),
            ("include", "tenure_sqlite.h"),
            (LIBRARIES, "libtenure.so"),
            (LIBRARIES, "libtenure.a"),
            ("lib/MULTIARCH/pkgconfig", "tenure.pc"),
            ("share/man/man3", "tenure_"),
            ("share/man/man7", "tenure.7"),
        ],
    },
    Package {
        name: "libtenure-preload",
        section: "libs",
        is_multi_arch: true,
        depends: &[],
        summary: "control over the life of memory: library for unmodified programs",
        description: "\
tenure gives a program control over when its memory is faulted in, stays
resident, may be reclaimed and is released, on stock Linux kernels.
.
This package has the library that the loader preloads into programs that
nobody recompiles: LD_PRELOAD=libtenure_preload.so, with options as
environment variables; and libtenure_sqlite.so, the page cache that one of
these options gives SQLite.",
        files: &[
            (LIBRARIES, "libtenure_preload.so"),
            (LIBRARIES, "libtenure_sqlite.so"),
        ],
    },
    Package {
        name: "tenure",
        section: "utils",
        is_multi_arch: false,
        depends: &["libtenure-preload ="],
        summary: "control over the life of memory: command",
        description: "\
tenure gives a program control over when its memory is faulted in, stays
resident, may be reclaimed and is released, on stock Linux kernels.
.
This package has the command: it runs programs with tenure under them, tells
what the memory of processes and containers is, what the running kernel
allows, and measures.",
        files: &[
            ("bin", "tenure"),
            ("share/man/man1", "tenure"),
            ("share/bash-completion/completions", "tenure"),
            ("share/zsh/site-functions", "_tenure"),
            ("share/fish/vendor_completions.d", "tenure.fish"),
            ("lib/systemd/system", "tenure"),
        ],
    },
];

/// Files that `make uninstall` needs, and dpkg does not.
const RECORD: &str = "share/tenure/folders";

/// Where Debian has a folder of its own for packages.
const MOVED: (&str, &str) = ("share/zsh/site-functions", "share/zsh/vendor-completions");

/// Returns the package that takes an installed file, given by its path below /usr, and the
/// path that it has there; `None` for a file that no package needs.
///
/// # Errors
///
/// A file that no package takes.
pub fn place(file: &Path, multiarch: &str) -> Result<Option<(&'static Package, String)>> {
    let shown = file.to_str().context("a name that is not UTF-8")?;
    if shown == RECORD {
        return Ok(None);
    }
    let (folder, name) = shown.rsplit_once('/').context("a file in no folder")?;
    let takes = |package: &&Package| {
        package.files.iter().any(|(in_folder, start)| {
            in_folder.replace("MULTIARCH", multiarch) == folder && name.starts_with(start)
        })
    };
    let package = PACKAGES.iter().find(takes);
    let package = package.with_context(|| format!("no package takes {shown}"))?;
    let folder = match MOVED {
        (from, to) if from == folder => to,
        _ => folder,
    };
    Ok(Some((package, format!("{folder}/{name}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(file: &str) -> Option<(&'static str, String)> {
        let found = place(Path::new(file), "x86_64-linux-gnu").unwrap();
        found.map(|(package, path)| (package.name, path))
    }

    #[test]
    fn installed_file_goes_into_its_package() {
        for (file, package) in [
            ("lib/x86_64-linux-gnu/libtenure.so.0", "libtenure0"),
            ("lib/x86_64-linux-gnu/libtenure.so.0.1.0", "libtenure0"),
            ("lib/x86_64-linux-gnu/libtenure.so", "libtenure-dev"),
            ("lib/x86_64-linux-gnu/libtenure.a", "libtenure-dev"),
            (
                "lib/x86_64-linux-gnu/libtenure_preload.so",
                "libtenure-preload",
            ),
            (
                "lib/x86_64-linux-gnu/libtenure_sqlite.so",
                "libtenure-preload",
            ),
            ("include/tenure.hpp", "libtenure-dev"),
            ("share/man/man3/tenure_mlock.3", "libtenure-dev"),
            ("share/man/man1/tenure-run.1", "tenure"),
            ("bin/tenure", "tenure"),
            ("lib/systemd/system/tenure-x@.service", "tenure"),
        ] {
            assert_eq!(placed(file), Some((package, file.to_owned())));
        }
        let zsh = placed("share/zsh/site-functions/_tenure").unwrap();
        assert_eq!(zsh.1, "share/zsh/vendor-completions/_tenure");
    }

    #[test]
    fn record_of_folders_is_left_out_and_unknown_file_is_an_error() {
        assert_eq!(placed(RECORD), None);
        for unknown in ["bin/other", "lib/libtenure.so", "share/doc/x"] {
            assert!(place(Path::new(unknown), "x86_64-linux-gnu").is_err());
        }
    }

    #[test]
    fn descriptions_fit_the_lines_of_a_control_file() {
        for package in &PACKAGES {
            assert!(package.summary.len() <= 80, "{}", package.name);
            let mut lines = package.description.lines();
            assert!(lines.all(|line| line.len() < 80), "{}", package.name);
        }
    }
}
