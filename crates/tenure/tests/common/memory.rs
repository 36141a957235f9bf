//! Mappings that tests use.

use rustix::mm::{MapFlags, ProtFlags};
use tenure::{Mapping, PageRange, page_size};

use super::has_vm_flag;

/// Returns `count` pages of a range, from page `first` on.
pub fn pages(of: PageRange, first: usize, count: usize) -> PageRange {
    PageRange::new(of.start() + first * page_size(), count * page_size()).unwrap()
}

/// Maps private anonymous memory of base pages, with a [`tag`], so that no neighbour merges with
/// it.
pub fn anonymous(page_count: usize) -> Mapping {
    let memory = Mapping::anonymous(page_count * page_size())
        .huge_pages(tenure::HugePages::Never)
        .map()
        .unwrap();
    tag(memory.range());
    memory
}

/// Has the kernel use no huge pages in the range, whatever the machine's setting.
pub fn use_base_pages(range: PageRange) {
    let advice = rustix::mm::Advice::LinuxNoHugepage;
    // A kernel without huge pages refuses.
    let _ = unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) };
}

/// Sets a flag that no other mapping has (read-ahead advice), so that [`is_still_mapped`]
/// recognizes the mapping.
pub fn tag(range: PageRange) {
    let advice = rustix::mm::Advice::Random;
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
}

/// Maps and populates 64 MiB and one page: enough for a deferred free.
pub fn large() -> Mapping {
    let memory = anonymous((64 << 20) / page_size() + 1);
    memory.populate(.., tenure::Access::Write).unwrap();
    memory
}

/// Whether memory with a [`tag`] is still mapped. (Unmapped addresses may already hold
/// another mapping, such as a worker's stack.)
pub fn is_still_mapped(range: PageRange) -> bool {
    has_vm_flag(range, "rr")
}

/// Waits until all pending memory is freed.
pub fn drain_pending() {
    tenure::drain(Some(std::time::Duration::from_secs(60))).unwrap();
}

pub fn raw_unmap(range: PageRange) {
    unsafe { rustix::mm::munmap(range.as_ptr().cast(), range.len()) }.unwrap();
}

/// Maps fresh private anonymous memory over the range, without tenure.
pub fn raw_map_over(range: PageRange) {
    unsafe {
        rustix::mm::mmap_anonymous(
            range.as_ptr().cast(),
            range.len(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    }
    .unwrap();
}

pub fn raw_protect(range: PageRange, flags: rustix::mm::MprotectFlags) {
    unsafe { rustix::mm::mprotect(range.as_ptr().cast(), range.len(), flags) }.unwrap();
}

/// Creates a temporary file of `len` bytes with a pattern other than [`fill`]'s: byte `n`
/// is `n % 251`.
pub fn file(len: usize) -> std::fs::File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file
}
