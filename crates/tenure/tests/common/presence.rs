//! Which pages are there, and making the kernel reclaim them.

use rustix::mm::Advice;
use tenure::{PageRange, page_size};

use super::cpus::on_each_cpu;

/// Flushes the batches of every CPU: pages that wait there are added to the kernel's LRU
/// lists. Needed after a lazy free, before anything makes the kernel reclaim pages, because
/// the thread may have moved to another CPU between the two calls of the lazy free; and for
/// pages that [`fill`] did not write.
pub fn flush_all_batches() {
    on_each_cpu(flush_batch);
}

/// Flushes this CPU's batches to the kernel's LRU lists, which MADV_COLD does before it
/// looks at any page. The page given is one of the program that is always present.
pub(super) fn flush_batch() {
    static SOMETHING: u8 = 1;
    let at = (&raw const SOMETHING).addr();
    let page = PageRange::new(at / page_size() * page_size(), page_size()).unwrap();
    // MADV_COLD fails on locked memory, in a test that locks everything.
    let _ = unsafe { rustix::mm::madvise(page.as_ptr().cast(), page.len(), Advice::LinuxCold) };
}

/// Which pages are present, according to `/proc/self/pagemap`. A page that the kernel is
/// migrating (compaction) looks swapped out: such pages are read again, for half a second,
/// because the kernel's thread may wait for a CPU in the middle of a migration.
pub fn present(range: PageRange) -> Vec<bool> {
    let mut present = vec![false; range.pages()];
    for _ in 0..500 {
        let entries = pagemap(range);
        for (is_present, entry) in present.iter_mut().zip(&entries) {
            *is_present |= entry >> 63 == 1;
        }
        let mut entries_now = present.iter().zip(&entries);
        if !entries_now.any(|(is_present, entry)| !is_present && entry >> 62 == 1) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    present
}

/// Whether a range that has been populated is present. The kernel unmaps pages of a file
/// when it splits a large folio, so what is absent is populated again, twice at most: a
/// page that populating leaves out stays absent.
pub fn is_populated(range: PageRange, populate_again: impl Fn()) -> bool {
    (0..2).any(|_| {
        let is_present = count_present(range) == range.pages();
        if !is_present {
            populate_again();
        }
        is_present
    }) || count_present(range) == range.pages()
}

/// Which pages are neither present nor in swap nor being migrated.
pub fn absent(range: PageRange) -> Vec<bool> {
    let entries = pagemap(range).into_iter();
    entries.map(|entry| entry >> 62 == 0).collect()
}

/// Returns the entries of `/proc/self/pagemap`.
pub fn pagemap(range: PageRange) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; range.pages() * 8];
    pagemap
        .read_exact_at(&mut entries, (range.start() / page_size() * 8) as u64)
        .unwrap();
    let entries = entries.chunks(8);
    entries
        .map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()))
        .collect()
}

pub fn count_present(range: PageRange) -> usize {
    present(range).into_iter().filter(|&is| is).count()
}

/// Makes the kernel reclaim what it may of the range, as under memory pressure.
pub fn page_out(range: PageRange) {
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxPageOut) }
        .unwrap();
}

/// Makes the kernel reclaim every page of the range, which must have been offered. Batches
/// are flushed first: once the kernel has tried to reclaim a page that waits in a batch,
/// the batch's CPU forgets MADV_FREE for it.
pub fn page_out_all(range: PageRange) {
    offer_and_page_out(range, || ());
}

/// Frees lazily and makes the kernel reclaim every page, repeatedly, because MADV_FREE
/// skips pages that the kernel is migrating (compaction).
pub fn lazy_free_and_page_out(range: PageRange) {
    offer_and_page_out(range, || unsafe { range.lazy_free() }.unwrap());
}

fn offer_and_page_out(range: PageRange, offer: impl Fn()) {
    for _ in 0..2000 {
        offer();
        flush_all_batches();
        page_out(range);
        if count_present(range) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!(
        "{} of {} pages are still there",
        count_present(range),
        range.pages()
    );
}
