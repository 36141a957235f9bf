//! Memory that the kernel takes out of use while it is in use: single pages
//! (`MADV_SOFT_OFFLINE`), and whole blocks as before they are unplugged. The kernel moves the
//! contents elsewhere, or purges what it may reclaim: no byte is lost, and none is unreported.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::*;
use libtest_mimic::Completion;
use tenure::lazy_free::FreePolicy;
use tenure::{Access, LockMode, Mapping, Outcome, PageRange, VolatileBuffer, page_size};

tests!(
    unless: || (!machine_is_ours() || !is_root())
        .then_some("takes memory of the machine out of use");
    soft_offlined_pages_keep_contents,
    soft_offlined_pages_of_buffer_are_reported,
    offline_blocks_keep_contents,
    offline_blocks_of_buffer_are_reported;
    children:
    soft_offline_pages,
    soft_offline_buffer,
);

const PAGES: usize = 64;

/// The exit status of a child whose kernel takes no pages out of use.
const CANNOT: i32 = 77;

fn soft_offlined_pages_keep_contents() -> Completion {
    in_child_that_can("soft_offline_pages")
}

fn soft_offlined_pages_of_buffer_are_reported() -> Completion {
    if tenure::Features::get().userfaultfd.is_err() {
        return skip("no userfaultfd here");
    }
    in_child_that_can("soft_offline_buffer")
}

fn in_child_that_can(name: &str) -> Completion {
    let output = in_child(name);
    if output.status.code() == Some(CANNOT) {
        return skip("needs MADV_SOFT_OFFLINE (CONFIG_MEMORY_FAILURE)");
    }
    assert_ended_well(name, &output);
    Completion::Completed
}

/// Has the kernel replace each of some pages, which it refuses while it uses the page itself.
fn soft_offline(range: PageRange) {
    for page in 0..range.pages() {
        let page = pages(range, page, 1);
        let refused = (0..100).all(|_| {
            let (at, len) = (page.as_ptr().cast(), page.len());
            let answer = unsafe { libc::madvise(at, len, libc::MADV_SOFT_OFFLINE) };
            if answer != 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            answer != 0
        });
        if refused {
            println!("{page:?}: {}", std::io::Error::last_os_error());
            std::process::exit(CANNOT);
        }
    }
}

fn soft_offline_pages() {
    let plain = anonymous(PAGES);
    fill(plain.range());
    let locked = anonymous(PAGES);
    fill(locked.range());
    locked.lock(.., LockMode::Now).unwrap();
    let shared = Mapping::shared_anonymous(PAGES * page_size())
        .map()
        .unwrap();
    fill(shared.range());
    let locked_kib = status_kib("VmLck");
    for memory in [&plain, &locked, &shared] {
        soft_offline(pages(memory.range(), 20, 3));
        assert!(is_filled(memory.range()));
        memory.populate(.., Access::Write).unwrap();
        assert!(is_filled(memory.range()));
    }
    assert_eq!(status_kib("VmLck"), locked_kib);
    let memory = anonymous(PAGES);
    fill(memory.range());
    let idle = memory.free(FreePolicy::Lazy).unwrap();
    soft_offline(pages(idle.range(), 20, 3));
    let memory = idle.reuse().unwrap();
    fill(memory.range());
    assert!(is_filled(memory.range()));
}

fn soft_offline_buffer() {
    // Offered to the kernel at once, and not at all.
    for delay in [Duration::ZERO, Duration::from_secs(3600)] {
        tenure::volatile::set_offer_delay(delay);
        let memory = anonymous(PAGES);
        fill(memory.range());
        let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
        buffer.mark_volatile();
        soft_offline(pages(buffer.range(), 20, 3));
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert_reported(buffer.range(), &outcome);
    }
}

/// Asserts that each page has its contents, or is reported and zero.
fn assert_reported(range: PageRange, outcome: &Outcome) {
    let purged: &[PageRange] = match outcome {
        Outcome::Intact => &[],
        Outcome::Purged(ranges) => ranges,
    };
    for page in 0..range.pages() {
        let page = pages(range, page, 1);
        let is_purged = |it: &PageRange| it.start() <= page.start() && page.start() < it.end();
        match purged.iter().any(is_purged) {
            true => assert!(is_zero(page), "{page:?} is purged, but not zero"),
            false => assert!(is_filled(page), "{page:?} has other contents"),
        }
    }
}

/// A block of the machine's memory that is offline until this is dropped.
struct Offline {
    state: PathBuf,
}

impl Offline {
    /// Takes the blocks offline that memory is in, but only those of a movable zone: in others
    /// the kernel may try for ever.
    fn blocks_of(range: PageRange) -> Vec<Self> {
        const FOLDER: &str = "/sys/devices/system/memory";
        let block_bytes = fs::read_to_string(format!("{FOLDER}/block_size_bytes"));
        let Ok(block_bytes) = block_bytes.map(|it| u64::from_str_radix(it.trim(), 16).unwrap())
        else {
            return Vec::new();
        };
        let frames = pagemap(range).into_iter();
        // The lowest 55 bits of an entry are the page's number where it is present.
        let frames = frames.filter(|entry| entry >> 63 == 1);
        let blocks: BTreeSet<u64> = frames
            .map(|entry| (entry & ((1 << 55) - 1)) * page_size() as u64 / block_bytes)
            .collect();
        let blocks = blocks.into_iter().filter_map(|block| {
            let zones = fs::read_to_string(format!("{FOLDER}/memory{block}/valid_zones"));
            if !zones.is_ok_and(|zones| zones.trim() == "Movable") {
                return None;
            }
            let state = PathBuf::from(format!("{FOLDER}/memory{block}/state"));
            // The kernel gives up after a while, and now and then it succeeds later.
            let offline = (0..3).any(|_| fs::write(&state, "offline").is_ok());
            offline.then_some(Self { state })
        });
        blocks.collect()
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        // Of itself the kernel gives the block to a zone whose memory need not be movable, and the
        // next test has none.
        let _ = fs::write(&self.state, "online_movable");
    }
}

fn offline_blocks_keep_contents() -> Completion {
    let page_count = (64 << 20) / page_size();
    let plain = anonymous(page_count);
    let locked = anonymous(page_count);
    locked.lock(.., LockMode::OnFault).unwrap();
    let shared = Mapping::shared_anonymous(64 << 20).map().unwrap();
    let mut any = false;
    for memory in [&plain, &locked, &shared] {
        fill(memory.range());
        let offline = Offline::blocks_of(memory.range());
        any |= !offline.is_empty();
        assert!(is_filled(memory.range()));
        memory.populate(.., Access::Write).unwrap();
        assert!(is_filled(memory.range()));
    }
    let idle = plain.free(FreePolicy::Lazy).unwrap();
    any |= !Offline::blocks_of(idle.range()).is_empty();
    let memory = idle.reuse().unwrap();
    fill(memory.range());
    assert!(is_filled(memory.range()));
    completion(any)
}

fn offline_blocks_of_buffer_are_reported() -> Completion {
    let mut any = false;
    for delay in [Duration::ZERO, Duration::from_secs(3600)] {
        tenure::volatile::set_offer_delay(delay);
        let memory = anonymous((64 << 20) / page_size());
        fill(memory.range());
        let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
        buffer.mark_volatile();
        any |= !Offline::blocks_of(buffer.range()).is_empty();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert_reported(buffer.range(), &outcome);
    }
    completion(any)
}

fn completion(any: bool) -> Completion {
    match any {
        true => Completion::Completed,
        false => skip("no block of memory is movable (movablecore=), or none can be taken offline"),
    }
}
