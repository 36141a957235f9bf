//! Swap for a test.

use std::{ffi::CString, fs, io::Write, os::unix::ffi::OsStrExt, path::Path};

use tenure::page_size;

use super::{Undo, lock_setting};

/// A swap file, in use until it is dropped or the process ends. Until then no other test
/// has one.
pub struct Swap {
    _off: Undo,
    file: tempfile::NamedTempFile,
}

impl Swap {
    const LEN: usize = 32 << 20;

    pub fn on() -> Result<Self, String> {
        let lock = lock_setting("/proc/swaps").ok_or("/proc/swaps cannot be locked")?;
        // Swap files cannot lie on tmpfs, where temporary files may be.
        let folder = option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp");
        let file = tempfile::Builder::new().prefix("swap").tempfile_in(folder);
        let mut file = file.or_else(|_| tempfile::NamedTempFile::new()).unwrap();
        let mut bytes = vec![0; Self::LEN];
        // The header that mkswap writes.
        let last_page = u32::try_from(Self::LEN / page_size() - 1).unwrap();
        bytes[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
        bytes[page_size() - 10..page_size()].copy_from_slice(b"SWAPSPACE2");
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        let path = CString::new(file.path().as_os_str().as_bytes()).unwrap();
        let name = file.path().to_owned();
        let off = {
            let path = path.clone();
            Undo::later(move || {
                let is_off = unsafe { libc::swapoff(path.as_ptr()) } == 0;
                let is_gone = fs::remove_file(&name).is_ok() && (is_off || !is_swap(&name));
                drop(lock);
                is_gone
            })
        };
        match unsafe { libc::swapon(path.as_ptr(), 0) } {
            0 => Ok(Self { _off: off, file }),
            _ => Err(format!("swapon: {}", std::io::Error::last_os_error())),
        }
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

pub fn is_swap(file: &Path) -> bool {
    let all = fs::read_to_string("/proc/swaps").unwrap_or_default();
    all.lines()
        .any(|line| line.split_whitespace().next() == file.to_str())
}
