//! The pool of huge pages, enlarged for as long as it is needed.

use std::{fs, io::Write as _, path::Path};

use anyhow::{Context as _, Result, bail};

use super::super::put_back::PutBack;
use crate::text::bytes_text;

const HUGE_PAGE_BYTES: usize = 2 << 20;
const SETTING: &str = "the pool of huge pages (vm.nr_hugepages)";

/// A pool of 2 MiB pages with enough of them free. What had to be added is taken
/// away again when this is dropped, or the command ends in any other way.
pub struct HugePool {
    put_back: Option<PutBack>,
}

impl HugePool {
    /// Sees to it that the system's pool has `len` bytes free.
    ///
    /// # Errors
    ///
    /// Says why it has not, and leaves it as it was.
    pub fn with_room(len: usize) -> Result<Self> {
        Self::at(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB"), len)
    }

    fn at(folder: &Path, len: usize) -> Result<Self> {
        let wanted = (len / HUGE_PAGE_BYTES) as u64;
        let count = folder.join("nr_hugepages");
        let count_before = read(&count)?;
        let free = free(folder)?;
        if free >= wanted {
            return Ok(Self { put_back: None });
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(&count)
            .with_context(|| {
                format!(
                    "the pool has {} free of {} needed, and only root may enlarge it \
                     (vm.nr_hugepages)",
                    bytes_text((free * HUGE_PAGE_BYTES as u64) as f64),
                    bytes_text(len as f64)
                )
            })?;
        // From here on an error drops this and so puts the pool back.
        let put_back = PutBack::at_the_end(&count, count_before, SETTING)?;
        let count = (count_before + wanted - free).to_string();
        file.write_all(count.as_bytes())
            .context("enlarging the pool (vm.nr_hugepages)")?;
        let free = self::free(folder)?;
        if free < wanted {
            bail!(
                "the kernel found only {} of {} for the pool",
                bytes_text((free * HUGE_PAGE_BYTES as u64) as f64),
                bytes_text(len as f64)
            );
        }
        Ok(Self {
            put_back: Some(put_back),
        })
    }

    /// Says whether pages were added.
    pub fn is_enlarged(&self) -> bool {
        self.put_back.is_some()
    }
}

/// Returns how many pages of the pool are free and promised to nobody.
fn free(folder: &Path) -> Result<u64> {
    let free = read(&folder.join("free_hugepages"))?;
    Ok(free.saturating_sub(read(&folder.join("resv_hugepages"))?))
}

fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("no huge pages of 2 MiB: reading {}", path.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} is no number", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a pool in which two pages are reserved.
    fn pool(count: &str, free: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("nr_hugepages", count);
        write("resv_hugepages", "2\n");
        match free {
            Some(free) => write("free_hugepages", free),
            // All pages of the pool are free, also those that are added.
            None => {
                std::os::unix::fs::symlink("nr_hugepages", folder.path().join("free_hugepages"))
                    .unwrap()
            }
        }
        folder
    }

    fn count(folder: &tempfile::TempDir) -> u64 {
        read(&folder.path().join("nr_hugepages")).unwrap()
    }

    #[test]
    fn a_pool_with_room_is_left_alone() {
        let folder = pool("9\n", Some("6\n"));
        let held = HugePool::at(folder.path(), 4 * HUGE_PAGE_BYTES).unwrap();
        assert!(!held.is_enlarged());
        assert_eq!(count(&folder), 9);
    }

    #[test]
    fn a_small_pool_is_enlarged_and_put_back() {
        let folder = pool("3\n", None);
        let held = HugePool::at(folder.path(), 8 * HUGE_PAGE_BYTES).unwrap();
        assert!(held.is_enlarged());
        assert_eq!(count(&folder), 10);
        drop(held);
        assert_eq!(count(&folder), 3);
    }

    #[test]
    fn a_kernel_that_finds_too_few_is_an_error_and_put_back() {
        let folder = pool("5\n", Some("4\n"));
        let error = HugePool::at(folder.path(), 8 * HUGE_PAGE_BYTES)
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("only 4 MiB of 16 MiB"),
            "{error}"
        );
        assert_eq!(count(&folder), 5);
    }

    #[test]
    fn no_pool_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = HugePool::at(folder.path(), HUGE_PAGE_BYTES).err().unwrap();
        assert!(
            error.to_string().contains("no huge pages of 2 MiB"),
            "{error}"
        );
    }
}
