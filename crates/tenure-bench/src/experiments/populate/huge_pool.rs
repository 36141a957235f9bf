//! The pool of huge pages, enlarged for as long as it is needed.

use std::path::Path;

use crate::machine::restore::{Setting, read_number};
use crate::measure::prelude::*;

pub const HUGE_PAGE_BYTES: usize = 2 << 20;
const SETTING: &str = "the pool of huge pages (vm.nr_hugepages)";

/// Sees to it that the system's pool of 2 MiB pages has `len` bytes free.
///
/// # Errors
///
/// Says why the pool is too small, and leaves it as it was.
pub fn with_free(len: usize) -> Result<Setting> {
    at(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB"), len)
}

pub fn at(folder: &Path, len: usize) -> Result<Setting> {
    let wanted = (len / HUGE_PAGE_BYTES) as u64;
    let file = folder.join("nr_hugepages");
    // Without a pool this says so.
    free(folder)?;
    let setting = Setting::raise(&file, SETTING, |count| {
        Ok(count + wanted.saturating_sub(free(folder)?))
    })?;
    let free = free(folder)?;
    let text = |pages: u64| bytes_text((pages * HUGE_PAGE_BYTES as u64) as f64);
    let (has, needs) = (text(free), text(wanted));
    match setting.is_raised() {
        _ if free >= wanted => Ok(setting),
        true => bail!("the kernel found only {has} of {needs} for the pool"),
        false => bail!(
            "the pool has {has} free of {needs} needed, and only root may enlarge it \
             (vm.nr_hugepages)"
        ),
    }
}

/// Returns how many pages of the pool are free and promised to nobody.
fn free(folder: &Path) -> Result<u64> {
    let read = |name| read_number(&folder.join(name)).context("no huge pages of 2 MiB");
    Ok(read("free_hugepages")?.saturating_sub(read("resv_hugepages")?))
}
