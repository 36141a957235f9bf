//! The operations that run while calls fail, and what must hold afterwards, whatever
//! failed.

mod headroom;
mod lazy_free;
mod lock;
mod mapping;
mod observe;
mod pool;
mod populate;
mod ready;
mod release;
mod volatile;

use std::sync::LazyLock;

use tenure::{Features, HugePages, Mapping, PageRange, page_size};

use super::case::Case;
use super::common::{fill, fork, is_filled, may_lock_anything, pages, raw_unmap};

pub struct Operation {
    pub name: &'static str,
    pub run: fn(&Case),
    /// The operation runs once beforehand, without faults.
    pub is_warm: bool,
    /// Returns the reason why it cannot run here.
    pub unless: fn() -> Option<&'static str>,
}

pub static ALL: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let groups = [
        mapping::ALL,
        populate::ALL,
        pool::ALL,
        lock::ALL,
        lazy_free::ALL,
        volatile::ALL,
        release::ALL,
        ready::ALL,
        observe::ALL,
        headroom::ALL,
    ];
    let warm = groups.iter().flat_map(|group| group.iter());
    let warm = warm.map(|&(name, run)| (name, run, true));
    let cold = headroom::FIRST
        .iter()
        .map(|&(name, run)| (name, run, false));
    let operation = |(name, run, is_warm)| Operation {
        name,
        run,
        is_warm,
        unless: match name {
            "lock_all" | "lock_all_now" | "lock_all_now_first" => cannot_lock_all,
            "unlock_all" | "unlock_all_beside_kept" => cannot_lock_all,
            "pool_configure" | "pool_to_mapping" | "pool_to_memory" => cannot_have_pool,
            _ => || None,
        },
    };
    warm.chain(cold).map(operation).collect()
});

fn cannot_lock_all() -> Option<&'static str> {
    let reason = "locks all memory of a process, which RLIMIT_MEMLOCK does not allow";
    (!may_lock_anything()).then_some(reason)
}

fn cannot_have_pool() -> Option<&'static str> {
    let reason = "the pool needs MREMAP_DONTUNMAP (Linux 5.7) and MADV_POPULATE_WRITE (5.14)";
    // In a child: the processes under test find out by themselves.
    let has_features = fork(|| {
        let features = Features::get();
        i32::from(features.mremap_dontunmap.is_ok() && features.madv_populate.is_ok())
    });
    (has_features == 0).then_some(reason)
}

/// The operations of one file.
type Group = &'static [(&'static str, fn(&Case))];

/// Filled memory with a page on either side.
struct Between {
    whole: Mapping,
    range: PageRange,
}

impl Between {
    fn new(page_count: usize) -> Self {
        let whole = Mapping::anonymous((page_count + 2) * page_size())
            .huge_pages(HugePages::Never)
            .map()
            .unwrap();
        fill(whole.range());
        let range = pages(whole.range(), 1, page_count);
        Self { whole, range }
    }

    /// Whether the bytes outside the range are unchanged.
    fn neighbours_are_intact(&self) -> bool {
        let whole = self.whole.range();
        let last = whole.pages() - 1;
        is_filled(pages(whole, 0, 1)) && is_filled(pages(whole, last, 1))
    }

    /// Unmaps the neighbours alone, after the range has been unmapped, where a thread's
    /// stack may be by now.
    fn unmap_neighbours(self) {
        let whole = std::mem::ManuallyDrop::new(self.whole).range();
        raw_unmap(pages(whole, 0, 1));
        raw_unmap(pages(whole, whole.pages() - 1, 1));
    }

    fn is_intact(&self) -> bool {
        is_filled(self.whole.range())
    }
}

/// Returns a few pages more than the size from which on release defers the free.
fn large_pages() -> usize {
    (4 << 20) / page_size() + 3
}
