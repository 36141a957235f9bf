//! A list of unpinned pages, by when they were unpinned.

use std::ptr::{NonNull, null_mut};

use crate::page::{CACHE_LINE_BYTES, Page, prefetch};

/// A doubly linked list through the pages.
pub(crate) struct List {
    newest: *mut Page,
    oldest: *mut Page,
    len: usize,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            newest: null_mut(),
            oldest: null_mut(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn oldest(&self) -> Option<NonNull<Page>> {
        NonNull::new(self.oldest)
    }

    /// Fetches the oldest page, and the one after it, into the CPU's cache: they are the next
    /// to be removed as the oldest, and were not used for long.
    pub(crate) fn prefetch_oldest(&self) {
        // SAFETY: pages in the list are live.
        if let Some(oldest) = unsafe { self.oldest.as_ref() } {
            oldest.prefetch_word();
            prefetch(oldest.newer.cast());
            prefetch(oldest.newer.wrapping_byte_add(CACHE_LINE_BYTES).cast());
        }
    }

    /// Adds a live page that is in no list, as the newest.
    pub(crate) fn push(&mut self, mut page: NonNull<Page>) {
        // SAFETY: the page and those in the list are live, and the cache uses them from one
        // thread at a time.
        unsafe {
            page.as_mut().newer = null_mut();
            page.as_mut().older = self.newest;
            match self.newest.as_mut() {
                Some(newest) => newest.newer = page.as_ptr(),
                None => self.oldest = page.as_ptr(),
            }
        }
        self.newest = page.as_ptr();
        self.len += 1;
    }

    /// Removes a page that is in the list.
    pub(crate) fn remove(&mut self, page: NonNull<Page>) {
        // SAFETY: as in `push`.
        unsafe {
            let (newer, older) = (page.as_ref().newer, page.as_ref().older);
            match newer.as_mut() {
                Some(newer) => newer.older = older,
                None => self.newest = older,
            }
            match older.as_mut() {
                Some(older) => older.newer = newer,
                None => self.oldest = newer,
            }
        }
        self.len -= 1;
    }
}
