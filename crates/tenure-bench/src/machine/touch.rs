//! Bringing memory in without tenure, and preparing memory for other experiments.

use std::{ptr, thread};

use anyhow::{Context as _, Result};
use rustix::mm::{self, Advice};
use tenure::{Features, page_size};

use super::{memory::RawMapping, threads::in_threads};

pub fn read_each_page(bytes: &[u8]) {
    for byte in bytes.iter().step_by(page_size()) {
        // SAFETY: the pointer comes from a reference. Volatile, because the
        // value is not used and the read must happen all the same.
        unsafe { ptr::read_volatile(byte) };
    }
}

/// Writes the first byte of each page; `first_byte` gives the one that already
/// stands there, so that contents stay what they are.
pub fn write_each_page(bytes: &mut [u8], first_byte: impl Fn(usize) -> u8) {
    let pages = bytes.iter_mut().step_by(page_size());
    for (index, byte) in pages.enumerate() {
        // SAFETY: the pointer comes from a reference. Volatile, because writing
        // what stands there already must not be optimised away.
        unsafe { ptr::write_volatile(byte, first_byte(index)) };
    }
}

pub fn read_and_write_each_page(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().step_by(page_size()) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(byte, ptr::read_volatile(byte)) };
    }
}

/// Brings zeroed memory in for writing, with a thread for each of up to 16 CPUs.
pub fn bring_in(bytes: &mut [u8]) -> Result<()> {
    // A call for each 64 MiB: one large call would keep the other threads of the
    // process from mapping memory for as long as it runs.
    const CHUNK: usize = 64 << 20;
    let threads = thread::available_parallelism().map_or(1, |cpus| cpus.get().min(16));
    let share = (bytes.len() / threads)
        .next_multiple_of(page_size())
        .max(CHUNK);
    let bring_in_share = |share: &mut [u8]| share.chunks_mut(CHUNK).try_for_each(bring_in_chunk);
    in_threads(bytes.chunks_mut(share), bring_in_share).map(drop)
}

/// Touches as much memory as will be used: a virtual machine's memory is only
/// backed by its host when it is first used.
pub fn memory_once(len: usize) -> Result<()> {
    let mut mapping = RawMapping::base_pages(len.next_multiple_of(page_size()))?;
    bring_in(mapping.bytes_mut())
}

fn bring_in_chunk(chunk: &mut [u8]) -> Result<()> {
    if Features::get().madv_populate.is_err() {
        write_each_page(chunk, |_| 0);
        return Ok(());
    }
    let advice = Advice::LinuxPopulateWrite;
    // SAFETY: the chunk is borrowed mutably, and populating changes no contents.
    unsafe { mm::madvise(chunk.as_mut_ptr().cast(), chunk.len(), advice) }
        .with_context(|| format!("MADV_POPULATE_WRITE of {} bytes", chunk.len()))
}
