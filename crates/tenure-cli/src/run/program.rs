//! The program to run: its path, and whether the loader will preload the library into it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{Endianness, FileKind, ReadCache, elf};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};

use super::{CANNOT_RUN, NOT_FOUND, Refusal};

/// Stands in for PATH where that is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How long a chain of script interpreters may be: the kernel's limit.
const MAX_INTERPRETERS: usize = 5;

/// Finds a program as `execvp(3)` does.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let path = env::var_os("PATH").unwrap_or(DEFAULT_PATH.into());
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = Path::new(name).display();
    let is_path = name.as_bytes().contains(&b'/');
    let candidates = if is_path {
        vec![PathBuf::from(name)]
    } else {
        env::split_paths(path)
            .filter(|_| !name.is_empty())
            .map(|folder| folder.join(name))
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match may_execute(&candidate) {
            Ok(()) => return Ok(candidate),
            // In a folder of PATH that may not be searched the file need not exist.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && (is_path || candidate.exists()) =>
            {
                refused.get_or_insert(candidate);
            }
            Err(_) => {}
        }
    }
    Err(match refused {
        Some(candidate) => {
            let message = format!(
                "{} may not be executed: it must be a file with permission to execute",
                candidate.display()
            );
            Refusal::new(CANNOT_RUN, message)
        }
        None => Refusal::new(NOT_FOUND, format!("there is no program {shown}")),
    })
}

fn may_execute(file: &Path) -> io::Result<()> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?;
    Ok(())
}

/// Checks that the loader will preload the library into the program or, for a script,
/// into its interpreter. A file that cannot be read or recognized is left to the kernel.
pub(super) fn check(program: &Path) -> Result<(), Refusal> {
    let mut file = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match kind_of(&file) {
            Ok(Kind::Script(interpreter)) => file = interpreter,
            Ok(Kind::Elf(found)) => {
                let own = env::current_exe().and_then(|own| kind_of(&own));
                let own = match &own {
                    Ok(Kind::Elf(own)) => Some(own),
                    _ => None,
                };
                return explain(&file, program, obstacle(&file, &found, own));
            }
            Ok(Kind::Other) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn explain(file: &Path, program: &Path, obstacle: Option<String>) -> Result<(), Refusal> {
    let Some(obstacle) = obstacle else {
        return Ok(());
    };
    let mut what = file.display().to_string();
    if file != program {
        what = format!("{}: its interpreter {what}", program.display());
    }
    Err(Refusal::new(CANNOT_RUN, format!("{what} {obstacle}")))
}

/// How the kernel would run a file.
#[derive(Debug, PartialEq)]
enum Kind {
    /// A script with this interpreter.
    Script(PathBuf),
    Elf(Elf),
    Other,
}

#[derive(Debug, PartialEq)]
struct Elf {
    is_64_bit: bool,
    machine: u16,
    /// The loader that the program names; a static program names none.
    loader: Option<PathBuf>,
}

fn kind_of(file: &Path) -> io::Result<Kind> {
    let mut opened = File::open(file)?;
    // As much as the kernel reads.
    let mut head = [0; 256];
    let len = opened.read(&mut head)?;
    if let Some(line) = head[..len].strip_prefix(b"#!") {
        return Ok(interpreter(line).map_or(Kind::Other, Kind::Script));
    }
    let file = ReadCache::new(opened);
    let elf = match FileKind::parse(&file) {
        Ok(FileKind::Elf32) => elf_of::<elf::FileHeader32<Endianness>>(&file, false),
        Ok(FileKind::Elf64) => elf_of::<elf::FileHeader64<Endianness>>(&file, true),
        _ => None,
    };
    Ok(elf.map_or(Kind::Other, Kind::Elf))
}

fn elf_of<H: FileHeader<Endian = Endianness>>(
    file: &ReadCache<File>,
    is_64_bit: bool,
) -> Option<Elf> {
    let header = H::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let mut loader = None;
    for segment in header.program_headers(endian, file).ok()? {
        let path = segment.interpreter(endian, file).ok()?;
        loader = loader.or(path.map(|path| PathBuf::from(OsStr::from_bytes(path))));
    }
    Some(Elf {
        is_64_bit,
        machine: header.e_machine(endian),
        loader,
    })
}

/// Returns the interpreter that a script's first line names after "#!".
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let first = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(first)))
}

/// Says why the loader would not preload the library into the program. `own` is this
/// command, which has the library's processor and loader.
fn obstacle(file: &Path, program: &Elf, own: Option<&Elf>) -> Option<String> {
    if let Some(own) = own
        && (own.machine, own.is_64_bit) != (program.machine, program.is_64_bit)
    {
        return Some(
            "is for another processor than libtenure_preload.so: build both for the same one"
                .to_owned(),
        );
    }
    let Some(loader) = &program.loader else {
        return Some(
            "is statically linked: the loader cannot preload into it; link it dynamically, or \
             use tenure in its source"
                .to_owned(),
        );
    };
    let own_loader = own.and_then(|own| own.loader.as_ref());
    if own_loader.is_some_and(|own| own.file_name() != loader.file_name()) {
        return Some(format!(
            "uses another C library than libtenure_preload.so: its loader is {}",
            loader.display()
        ));
    }
    gained_rights(file)
        .map(|how| format!("{how}: the loader ignores LD_PRELOAD in it; run it without tenure"))
}

/// Says how the program, when it is run, gains rights that this process does not have.
fn gained_rights(file: &Path) -> Option<&'static str> {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID_AND_EXECUTABLE: u32 = 0o2010;
    let is_nosuid = rustix::fs::statvfs(file)
        .is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if is_nosuid || rustix::thread::no_new_privs() == Ok(true) {
        return None;
    }
    let metadata = fs::metadata(file).ok()?;
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let has = |bits| metadata.mode() & bits == bits;
    if has(SET_USER_ID) && metadata.uid() != user {
        return Some("is a set-user-ID program");
    }
    if has(SET_GROUP_ID_AND_EXECUTABLE) && metadata.gid() != group {
        return Some("is a set-group-ID program");
    }
    let mut attribute = [0_u8; 64];
    let has_capabilities =
        rustix::fs::getxattr(file, "security.capability", &mut attribute[..]).is_ok();
    // Root has them anyway.
    (has_capabilities && user != 0).then_some("is a program with file capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn program_is_found_as_execvp_finds_it() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b", "c"].map(|name| root.path().join(name));
        for folder in &folders {
            fs::create_dir(folder).unwrap();
        }
        let [a, b, c] = &folders;
        let path = env::join_paths(&folders).unwrap();
        let find = |name: &str| find_in(name.as_ref(), &path);
        fs::create_dir(a.join("x")).unwrap();
        file(b, "x", 0o644);
        let wanted = file(c, "x", 0o755);
        assert_eq!(find("x").unwrap(), wanted);
        assert_eq!(find(wanted.to_str().unwrap()).unwrap(), wanted);
        file(b, "y", 0o644);
        for (name, status) in [("y", CANNOT_RUN), ("z", NOT_FOUND), ("", NOT_FOUND)] {
            assert_eq!(find(name).unwrap_err().status, status, "{name}");
        }
        let folder = a.to_str().unwrap();
        assert_eq!(find(folder).unwrap_err().status, CANNOT_RUN);
    }

    #[test]
    fn interpreter_of_a_script_is_the_first_word_of_its_line() {
        for (line, wanted) in [
            ("/bin/sh\necho", Some("/bin/sh")),
            (" \t/usr/bin/env  perl -w\n", Some("/usr/bin/env")),
            ("\n/bin/sh", None),
            ("", None),
        ] {
            let found = interpreter(line.as_bytes());
            assert_eq!(found.as_deref(), wanted.map(Path::new), "{line:?}");
        }
    }

    #[test]
    fn own_program_has_no_obstacle() {
        let own = env::current_exe().unwrap();
        let Kind::Elf(elf) = kind_of(&own).unwrap() else {
            panic!("not an ELF file");
        };
        assert!(elf.is_64_bit == cfg!(target_pointer_width = "64"));
        assert!(elf.loader.is_some());
        assert_eq!(obstacle(&own, &elf, Some(&elf)), None);
    }

    #[test]
    fn program_that_cannot_be_preloaded_has_its_message() {
        let own = Elf {
            is_64_bit: true,
            machine: elf::EM_X86_64,
            loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
        };
        let message = |program: Elf| obstacle("/nowhere".as_ref(), &program, Some(&own));
        for (program, wanted) in [
            (
                Elf {
                    is_64_bit: false,
                    machine: elf::EM_386,
                    loader: Some("/lib/ld-linux.so.2".into()),
                },
                "another processor",
            ),
            (
                Elf {
                    is_64_bit: true,
                    machine: elf::EM_AARCH64,
                    loader: Some("/lib/ld-linux-aarch64.so.1".into()),
                },
                "another processor",
            ),
            (
                Elf {
                    is_64_bit: true,
                    machine: elf::EM_X86_64,
                    loader: None,
                },
                "statically linked",
            ),
            (
                Elf {
                    is_64_bit: true,
                    machine: elf::EM_X86_64,
                    loader: Some("/lib/ld-musl-x86_64.so.1".into()),
                },
                "another C library",
            ),
        ] {
            let message = message(program).unwrap();
            assert!(message.contains(wanted), "{message}");
        }
    }
}
