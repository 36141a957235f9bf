//! Swap for a test.

use std::{
    env,
    ffi::CString,
    fs,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process,
};

use tenure::page_size;

use super::{Undo, lock_setting};

const LEN: usize = 32 << 20;

/// A swap file, in use until it is dropped or the process ends. Until then no other test
/// has one.
pub struct Swap {
    _off: Undo,
    file: PathBuf,
}

impl Swap {
    pub fn on() -> Result<Self, String> {
        let lock = lock_setting("/proc/swaps").ok_or("/proc/swaps cannot be locked")?;
        // Swap files cannot lie on tmpfs, where temporary files may be.
        let folder = Path::new(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp"));
        let folder = match tempfile::tempfile_in(folder) {
            Ok(_) => folder.to_owned(),
            Err(_) => env::temp_dir(),
        };
        let file = folder.join(format!("tenure-test-{}.swap", process::id()));
        let path = CString::new(file.as_os_str().as_bytes()).unwrap();
        // It is there before the file is.
        let off = {
            let (path, file) = (path.clone(), file.clone());
            Undo::later(move || {
                let is_off = unsafe { libc::swapoff(path.as_ptr()) } == 0 || !is_swap(&file);
                let is_gone = fs::remove_file(&file).is_ok() || !file.exists();
                drop(lock);
                is_off && is_gone
            })
        };
        write(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        match unsafe { libc::swapon(path.as_ptr(), 0) } {
            0 => Ok(Self { _off: off, file }),
            _ => Err(format!("swapon: {}", std::io::Error::last_os_error())),
        }
    }

    pub fn path(&self) -> &Path {
        &self.file
    }
}

/// Makes a file with the header that mkswap writes.
fn write(path: &Path) -> io::Result<()> {
    let mut bytes = vec![0; LEN];
    let last_page = u32::try_from(LEN / page_size() - 1).unwrap();
    bytes[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    bytes[page_size() - 10..page_size()].copy_from_slice(b"SWAPSPACE2");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&bytes)?;
    file.sync_all()
}

pub fn is_swap(file: &Path) -> bool {
    let all = fs::read_to_string("/proc/swaps").unwrap_or_default();
    all.lines()
        .any(|line| line.split_whitespace().next() == file.to_str())
}
