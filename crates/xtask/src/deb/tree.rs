//! The files of one package, below a folder of its own.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::packages::Package;
use super::{Build, control, run_tool};

/// A package's files.
pub struct Tree {
    pub package: &'static Package,
    pub folder: PathBuf,
}

impl Tree {
    pub fn new(build: &Build, package: &'static Package) -> Result<Self> {
        let folder = build.output.join("trees").join(package.name);
        make_folder(&folder)?;
        Ok(Self { package, folder })
    }

    /// Copies an installed file to its path below /usr, without symbols that are of use only
    /// to debuggers; pages of the manual are compressed.
    pub fn take(&self, file: &Path, to: &str) -> Result<()> {
        let to = self.folder.join("usr").join(to);
        make_folder(to.parent().context("a file in no folder")?)?;
        if file.is_symlink() {
            return symlink(fs::read_link(file)?, &to).context("making a link");
        }
        fs::copy(file, &to).with_context(|| format!("copying {}", file.display()))?;
        let name = to.to_string_lossy().into_owned();
        let is_program = fs::metadata(&to)?.permissions().mode() & 0o111 != 0;
        let is_shared_library = name.contains(".so");
        // The loader maps libraries, and nobody executes them.
        let mode = if is_program && !is_shared_library {
            0o755
        } else {
            0o644
        };
        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        if name.contains("/share/man/") {
            return compress(&to);
        }
        let symbols = match () {
            () if name.ends_with(".a") => "--strip-debug",
            () if is_shared_library => "--strip-unneeded",
            () if is_program => "--strip-all",
            () => return Ok(()),
        };
        let mut strip = Command::new("strip");
        strip.args([
            symbols,
            "--remove-section=.comment",
            "--remove-section=.note",
        ]);
        strip.arg("--enable-deterministic-archives").arg(&to);
        run_tool(&mut strip)
    }

    /// Adds the licence and the changelogs, as Debian's policy has them.
    pub fn add_documents(&self, build: &Build) -> Result<()> {
        let folder = self.folder.join("usr/share/doc").join(self.package.name);
        make_folder(&folder)?;
        let copyright = fs::read(build.root.join("packaging/debian/copyright"))?;
        write(&folder.join("copyright"), &copyright)?;
        let upstream = folder.join("changelog");
        write(&upstream, &fs::read(build.root.join("CHANGELOG.md"))?)?;
        compress(&upstream)?;
        let debian = folder.join("changelog.Debian");
        write(&debian, control::changelog(build)?.as_bytes())?;
        compress(&debian)
    }
}

/// Makes a folder and those above it, with the permissions that a package needs whatever
/// this process's umask.
fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    make_folder(folder.parent().context("a folder in no folder")?)?;
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Writes a file that everybody may read.
pub fn write(file: &Path, contents: &[u8]) -> Result<()> {
    make_folder(file.parent().context("a file in no folder")?)?;
    fs::write(file, contents).with_context(|| format!("writing {}", file.display()))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

fn compress(file: &Path) -> Result<()> {
    run_tool(Command::new("gzip").args(["-9n", "--force"]).arg(file))
}

/// Returns the files and links below a folder, sorted.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder);
    for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}
