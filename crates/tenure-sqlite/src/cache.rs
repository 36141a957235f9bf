//! A cache: the pages of a database file, for one connection or for those that share it.
//!
//! SQLite calls the methods of a cache from one thread at a time. Pages that SQLite uses
//! are *pinned*, and nonvolatile; SQLite unpins clean pages only, and these are volatile, but
//! for the last few, which are likely to be the next ones: the upper pages of trees.
//!
//! A page that is not returned, unless [`Create::IfEasy`], is gone: SQLite changes the database file behind a page
//! that it was told is not in the cache, so such a page must never be found later.

use std::ptr::NonNull;

use tenure::{Outcome, sqlite_stats};

use crate::arenas;
use crate::fork::Process;
use crate::growth::Growth;
use crate::index::Index;
use crate::page::{Contents, Page, PageState, Sizes};
use crate::supply::Supply;
use crate::unpinned::Unpinned;

/// After so many new pages the oldest ones are looked at, which may be purged.
const SWEEP_INTERVAL: u32 = 64;

/// So many purged pages are dropped at a time.
const SWEPT_PAGES: usize = 8;

/// A `cache_size` of less is a limit, as of SQLite's own cache: a program that sets it wants
/// to have little cached. SQLite's default is 2,000 KiB.
const MIN_UNLIMITED_BYTES: usize = 400 << 10;

/// The memory of a cache's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unpinned pages are volatile, but for those that were made without address space.
    Volatile,
    /// Ordinary memory: the cache drops unpinned pages beyond its size.
    Bounded,
    /// Ordinary memory that stays: the database is nowhere else.
    Kept,
}

/// Whether a look-up makes a page that is not there: SQLite's `createFlag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Create {
    Never,
    /// Unless SQLite had better write changed pages first, so that they can be unpinned.
    IfEasy,
    Always,
}

pub(crate) struct Cache {
    kind: Kind,
    sizes: Sizes,
    /// SQLite's `cache_size`, in pages.
    size: usize,
    index: Index,
    /// No page has a larger key.
    max_key: u32,
    unpinned: Unpinned,
    growth: Growth,
    /// New pages until the next sweep.
    until_sweep: u32,
    /// The supply of memory at the last look, and how it is found, by the bytes of the cache.
    supply: Supply,
    find_supply: fn(usize) -> Supply,
    /// The process whose figures have the pages.
    process: Process,
}

impl Cache {
    /// Returns `None` if there is no memory.
    pub(crate) fn new(kind: Kind, sizes: Sizes) -> Option<Self> {
        Some(Self {
            kind,
            sizes,
            size: 0,
            index: Index::new()?,
            max_key: 0,
            unpinned: Unpinned::new(),
            growth: Growth::new(),
            until_sweep: SWEEP_INTERVAL,
            supply: Supply::Ample,
            find_supply: Supply::now,
            process: Process::this(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Sets the number of pages that stay longest.
    pub(crate) fn set_size(&mut self, pages: usize) {
        self.size = pages;
        self.rebalance();
    }

    /// Whether the cache holds `size` pages at most, pinned ones apart.
    fn is_limited(&self) -> bool {
        match self.kind {
            Kind::Volatile => self.size.saturating_mul(self.sizes.bytes()) < MIN_UNLIMITED_BYTES,
            Kind::Bounded => true,
            Kind::Kept => false,
        }
    }

    /// Has each list as long as the cache's size allows, and a limited cache as well.
    fn rebalance(&mut self) {
        while self.is_limited()
            && self.len() > self.size
            && let Some(page) = self.unpinned.oldest()
        {
            self.drop_page(page);
        }
        let may_rest = self.kind == Kind::Volatile;
        self.unpinned.rebalance(self.size, may_rest);
    }

    /// Returns the page of a key, pinned; `None` if it is not there and none is made.
    pub(crate) fn fetch(&mut self, key: u32, create: Create) -> Option<NonNull<Page>> {
        if let Some(page) = self.index.get(key) {
            // SAFETY: pages in the index are live.
            let it = unsafe { page.as_ref() };
            it.prefetch_for_use();
            let state = it.state;
            if state == PageState::Pinned {
                return Some(page);
            }
            // SQLite writes a changed page, and asks again with `Always`. Otherwise a
            // transaction on pages that are all here would pin them without a bound.
            if create == Create::IfEasy && !self.is_limited() && self.has_many_pinned() {
                return None;
            }
            if self.pin(page) {
                return Some(page);
            }
            self.drop_page(page);
        }
        let page = match create {
            Create::Never => return None,
            Create::IfEasy if self.has_many_pinned() => return None,
            Create::IfEasy | Create::Always => self.make(key, create)?,
        };
        self.index.insert(page);
        if self.process.is_this() {
            sqlite_stats::add_pages(1);
        }
        self.max_key = self.max_key.max(key);
        Some(page)
    }

    /// Takes a page that is in the index out of its list, and makes it nonvolatile. Returns
    /// whether its contents are intact; otherwise the caller drops it.
    fn pin(&mut self, page: NonNull<Page>) -> bool {
        // First, because a compare-and-swap waits for all earlier stores.
        let is_intact = self.make_nonvolatile(page);
        self.unpinned.remove(page);
        is_intact
    }

    /// Makes an unpinned page nonvolatile, and returns whether its contents are intact.
    fn make_nonvolatile(&self, mut page: NonNull<Page>) -> bool {
        // SAFETY: pages in the index are live, and used by one thread at a time.
        let it = unsafe { page.as_mut() };
        if it.state == PageState::Resting {
            return true;
        }
        let Contents::Volatile(buffer) = &mut it.contents else {
            return true;
        };
        let was_offered = buffer.is_offered();
        match buffer.mark_nonvolatile() {
            Ok(Outcome::Intact) => {
                if was_offered {
                    sqlite_stats::add_offered_hit();
                }
                true
            }
            Ok(Outcome::Purged(_)) => {
                sqlite_stats::add_purged(self.sizes.page);
                false
            }
            // There is no memory to take the page back.
            Err(_) => false,
        }
    }

    /// Returns whether so much of the cache's size is pinned that SQLite should write changed
    /// pages before it takes another.
    fn has_many_pinned(&self) -> bool {
        let pinned = self.len() - self.unpinned.len();
        self.kind != Kind::Kept && pinned >= self.size.saturating_mul(9) / 10
    }

    /// Makes a page, or takes that of an older key; `None` if there is no memory.
    fn make(&mut self, key: u32, create: Create) -> Option<NonNull<Page>> {
        self.sweep();
        let may_grow = match self.kind {
            _ if self.is_limited() => self.len() + 1 < self.size,
            Kind::Volatile if self.supply != Supply::Ample && self.len() >= self.size => false,
            Kind::Volatile => self.growth.admits(self.sizes.volatile_bytes(), self.len()),
            Kind::Bounded | Kind::Kept => true,
        };
        if !may_grow {
            if self.supply == Supply::Short
                && self.len() > self.size
                && let Some(page) = self.unpinned.oldest()
            {
                self.drop_page(page);
            }
            if let Some(page) = self.recycle(key) {
                return Some(page);
            }
            if create == Create::IfEasy && !self.is_limited() {
                return None;
            }
        }
        let contents = match self.kind {
            Kind::Volatile => arenas::allocate(self.sizes.page).map(Contents::Volatile),
            Kind::Bounded | Kind::Kept => Contents::ordinary(self.sizes),
        };
        let page = contents.and_then(|contents| Page::new(self.sizes, contents, key));
        if page.is_some() || self.kind != Kind::Volatile {
            return page.or_else(|| self.recycle(key));
        }
        // Other caches have all the address space: this one holds `cache_size` pages all the
        // same, as SQLite's own.
        let recycled = match self.len() < self.size {
            true => None,
            false => self.recycle(key),
        };
        let ordinary = || Page::new(self.sizes, Contents::ordinary(self.sizes)?, key);
        recycled.or_else(ordinary).or_else(|| self.recycle(key))
    }

    /// Takes the oldest unpinned page out of the cache and makes it new, for another key.
    /// Drops those that are purged: their memory is gone already.
    fn recycle(&mut self, key: u32) -> Option<NonNull<Page>> {
        if self.kind == Kind::Kept {
            return None;
        }
        while let Some(mut page) = self.unpinned.oldest() {
            if !self.pin(page) {
                self.drop_page(page);
                continue;
            }
            self.remove(page);
            // SAFETY: the page is live, nonvolatile, and in neither the index nor a list.
            unsafe { page.as_mut().reset(key, self.sizes) };
            return Some(page);
        }
        None
    }

    /// Now and then looks whether memory is short, and drops some of the oldest pages if they
    /// are purged: nobody may ever ask for them.
    fn sweep(&mut self) {
        self.until_sweep -= 1;
        if self.until_sweep > 0 {
            return;
        }
        if self.kind == Kind::Volatile {
            let bytes = self.len().saturating_mul(self.sizes.volatile_bytes());
            self.supply = (self.find_supply)(bytes);
        }
        let mut swept = 0;
        while swept < SWEPT_PAGES
            && let Some(page) = self.unpinned.oldest()
            && is_purged(page)
        {
            sqlite_stats::add_purged(self.sizes.page);
            self.drop_page(page);
            swept += 1;
        }
        // Where some are purged there are more.
        self.until_sweep = if swept > 0 { 1 } else { SWEEP_INTERVAL };
    }

    /// Unpins a page that SQLite has not changed, or drops it.
    pub(crate) fn unpin(&mut self, page: NonNull<Page>, discard: bool) {
        if discard {
            return self.drop_page(page);
        }
        self.unpinned.push(page);
        self.rebalance();
    }

    /// Gives a pinned page another key. An unpinned page that has it is dropped.
    pub(crate) fn rekey(&mut self, mut page: NonNull<Page>, key: u32) {
        if let Some(other) = self.index.get(key).filter(|&other| other != page) {
            self.drop_page(other);
        }
        self.index.remove(page);
        // SAFETY: the page is live, and used by one thread at a time.
        unsafe { page.as_mut() }.key = key;
        self.index.insert(page);
        self.max_key = self.max_key.max(key);
    }

    /// Drops all pages with a key of at least `limit`, pinned or not.
    pub(crate) fn truncate(&mut self, limit: u32) {
        if limit > self.max_key {
            return;
        }
        if ((self.max_key - limit) as usize) < self.len() {
            for key in limit..=self.max_key {
                if let Some(page) = self.index.get(key) {
                    self.drop_page(page);
                }
            }
        } else {
            let mut bucket = 0;
            while let Some(page) = self.index.next_from(limit, &mut bucket) {
                self.drop_page(page);
            }
        }
        self.max_key = limit.saturating_sub(1);
    }

    /// Drops all unpinned pages.
    pub(crate) fn shrink(&mut self) {
        while self.kind != Kind::Kept
            && let Some(page) = self.unpinned.oldest()
        {
            self.drop_page(page);
        }
    }

    /// Takes a page out of the cache, and frees it.
    fn drop_page(&mut self, page: NonNull<Page>) {
        self.remove(page);
        // SAFETY: the page is in neither the index nor a list.
        unsafe { Page::free(page, self.sizes) };
    }

    /// Takes a page out of the index, and out of the list that it is in.
    fn remove(&mut self, page: NonNull<Page>) {
        self.unpinned.remove(page);
        self.index.remove(page);
        if self.process.is_this() {
            sqlite_stats::subtract_pages(1);
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let mut bucket = 0;
        while let Some(page) = self.index.next_from(0, &mut bucket) {
            self.drop_page(page);
        }
    }
}

/// Returns whether the contents of an unpinned page are known to be purged.
fn is_purged(page: NonNull<Page>) -> bool {
    // SAFETY: the callers pass live pages.
    match &unsafe { page.as_ref() }.contents {
        Contents::Volatile(buffer) => buffer.is_intact().is_ok_and(|is_intact| !is_intact),
        Contents::Ordinary(_) => false,
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
