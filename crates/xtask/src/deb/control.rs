//! The files that tell dpkg of a package: its control file, checksums, symbols and triggers.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::packages::{PACKAGES, Package, SOURCE};
use super::tree::{Tree, files_below, write};
use super::{Build, output, run_tool};

/// The packages' maintainer, unless the environment names another, as it does for Debian's
/// own tools.
const MAINTAINER: (&str, &str) = ("tenure developers", "maintainers@tenure.example");

/// The package of the shared library that programs are linked to.
const LIBRARY: &str = "libtenure0";

fn maintainer() -> String {
    let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (name, address) = MAINTAINER;
    let name = variable("DEBFULLNAME", name);
    format!("{name} <{}>", variable("DEBEMAIL", address))
}

/// Returns the changelog of the packages, with one entry: tenure's own tells the rest.
pub fn changelog(build: &Build) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date"]);
    let date = output(date.arg(format!("@{}", build.time)).env("LC_ALL", "C"))?;
    Ok(format!(
        "{SOURCE} ({}) unstable; urgency=medium\n\n  \
         * tenure {}; changelog.gz tells what is new.\n\n \
         -- {}  {date}\n",
        build.version,
        build.upstream,
        maintainer()
    ))
}

/// Adds what dpkg is told, and makes the package. Returns its path.
pub fn finish(build: &Build, tree: &Tree) -> Result<PathBuf> {
    let control = tree.folder.join("DEBIAN");
    let libraries = tree.folder.join("usr/lib").join(&build.multiarch);
    if tree.package.name == LIBRARY {
        let shlibs = format!("libtenure 0 {LIBRARY} (>= {})\n", build.upstream);
        write(&control.join("shlibs"), shlibs.as_bytes())?;
        check_symbols(build, &control.join("symbols"), &libraries)?;
    }
    if tree.package.section == "libs" {
        write(&control.join("triggers"), b"activate-noawait ldconfig\n")?;
    }
    let text = stanza(build, tree)?;
    write(&control.join("control"), text.as_bytes())?;
    write(&control.join("md5sums"), md5sums(tree)?.as_bytes())?;
    let Build {
        version,
        architecture,
        ..
    } = build;
    let name = format!("{}_{version}_{architecture}.deb", tree.package.name);
    let made = build.output.join(name);
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]);
    pack.arg(&tree.folder).arg(&made);
    // The packages are the same whenever they are made.
    pack.env("SOURCE_DATE_EPOCH", &build.time);
    output(&mut pack)?;
    Ok(made)
}

fn stanza(build: &Build, tree: &Tree) -> Result<String> {
    let Package {
        name,
        section,
        is_multi_arch,
        depends,
        summary,
        description,
        ..
    } = tree.package;
    let own = |package: &&str| match package.strip_suffix(" =") {
        Some(name) => format!("{name} (= {})", build.version),
        None => (*package).to_owned(),
    };
    let mut needs: Vec<String> = depends.iter().map(own).collect();
    needs.extend(needed_libraries(build, tree)?);
    let installed: u64 = files_below(&tree.folder.join("usr"))?
        .iter()
        .map(|file| Ok(fs::symlink_metadata(file)?.len().div_ceil(1024)))
        .sum::<Result<u64>>()?;
    let mut text = format!(
        "Package: {name}\nSource: {SOURCE}\nVersion: {}\nArchitecture: {}\n",
        build.version, build.architecture
    );
    let _ = writeln!(text, "Maintainer: {}", maintainer());
    let _ = writeln!(text, "Installed-Size: {installed}");
    if !needs.is_empty() {
        let _ = writeln!(text, "Depends: {}", needs.join(", "));
    }
    let _ = writeln!(text, "Section: {section}\nPriority: optional");
    if *is_multi_arch {
        text.push_str("Multi-Arch: same\n");
    }
    let _ = writeln!(text, "Description: {summary}");
    for line in description.lines() {
        let _ = writeln!(text, " {line}");
    }
    Ok(text)
}

/// Returns the packages of the shared libraries that a package's programs are linked to.
fn needed_libraries(build: &Build, tree: &Tree) -> Result<Vec<String>> {
    let programs: Vec<_> = files_below(&tree.folder.join("usr"))?
        .into_iter()
        .filter(|file| !file.is_symlink() && is_program(file))
        .collect();
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    // dpkg-shlibdeps wants to run where a source package is.
    let folder = build.output.join("trees/shlibdeps");
    let mut control = format!("Source: {SOURCE}\n");
    for package in &PACKAGES {
        let _ = write!(control, "\nPackage: {}\nArchitecture: any\n", package.name);
    }
    write(&folder.join("debian/control"), control.as_bytes())?;
    let mut tool = Command::new("dpkg-shlibdeps");
    tool.current_dir(&folder).args(["-O", "--warnings=0"]);
    let answer = output(tool.args(&programs))?;
    let list = answer.strip_prefix("shlibs:Depends=");
    let list = list.with_context(|| format!("dpkg-shlibdeps says {answer:?}"))?;
    Ok(list.split(", ").map(str::to_owned).collect())
}

fn is_program(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
}

/// Writes which symbols the library has, each with the version that first had it, from the
/// list in the source; a symbol that is missing there, or here, is an error.
fn check_symbols(build: &Build, file: &Path, libraries: &Path) -> Result<()> {
    write(file, b"")?;
    let list = build.root.join("packaging/debian/libtenure0.symbols");
    let folder = build.output.join("trees/shlibdeps");
    write(&folder.join("debian/control"), b"")?;
    let mut tool = Command::new("dpkg-gensymbols");
    tool.current_dir(&folder).arg("-c4").arg("-q");
    tool.arg(format!("-p{LIBRARY}"))
        .arg(format!("-v{}", build.version));
    tool.arg(format!("-I{}", list.display()));
    tool.arg(format!("-O{}", file.display()));
    let library = libraries.join(format!("libtenure.so.{}", build.upstream));
    run_tool(tool.arg(format!("-e{}", library.display())))
        .context("packaging/debian/libtenure0.symbols and the library differ")
}

fn md5sums(tree: &Tree) -> Result<String> {
    let files = files_below(&tree.folder.join("usr"))?;
    let files = files.iter().filter(|file| !file.is_symlink());
    let below: Vec<_> = files
        .map(|file| file.strip_prefix(&tree.folder).map(Path::to_owned))
        .collect::<Result<_, _>>()?;
    let mut tool = Command::new("md5sum");
    Ok(output(tool.current_dir(&tree.folder).args(below))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_the_package_are_those_that_the_library_exports() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |file| fs::read_to_string(root.join(file)).unwrap();
        let map = read("crates/tenure-c/tenure.map");
        let exported = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
        let exported: Vec<_> = exported
            .filter(|name| name.starts_with("tenure_"))
            .collect();
        let list = read("packaging/debian/libtenure0.symbols");
        let listed = list.lines().filter_map(|line| line.trim().split_once('@'));
        let listed: Vec<_> = listed
            .map(|(name, _)| name)
            .filter(|name| name.starts_with("tenure_"))
            .collect();
        assert!(!exported.is_empty());
        assert_eq!(listed, exported);
    }
}
