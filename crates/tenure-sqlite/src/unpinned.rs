//! The unpinned pages of a cache, in the order in which they are given up.

use std::ptr::NonNull;

use tenure::volatile::{Priority, VolatileOptions};

use crate::list::List;
use crate::page::{Contents, Page, PageState};

/// So many unpinned pages of a cache stay nonvolatile at most: pinning one of them again
/// takes neither a compare-and-swap nor a look at the clock. SQLite's own cache keeps 500
/// pages by default.
const MAX_RESTING: usize = 64;

/// Each page in it is live, and used by one thread at a time.
pub(crate) struct Unpinned {
    /// The last few pages that were unpinned, the `size` before, and those before these.
    resting: List,
    recent: List,
    old: List,
}

impl Unpinned {
    pub(crate) const fn new() -> Self {
        Self {
            resting: List::new(),
            recent: List::new(),
            old: List::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.resting.len() + self.recent.len() + self.old.len()
    }

    pub(crate) fn oldest(&self) -> Option<NonNull<Page>> {
        let lists = [&self.old, &self.recent, &self.resting];
        lists.into_iter().find_map(List::oldest)
    }

    /// Adds a page that is in no list, as the newest.
    pub(crate) fn push(&mut self, page: NonNull<Page>) {
        self.list_as(page, PageState::Resting);
    }

    /// Has each list as long as the cache's size allows; some of the pages rest where
    /// `may_rest`.
    pub(crate) fn rebalance(&mut self, size: usize, may_rest: bool) {
        let max_resting = if may_rest {
            MAX_RESTING.min(size / 8)
        } else {
            0
        };
        while self.resting.len() > max_resting
            && let Some(page) = self.resting.oldest()
        {
            self.resting.remove(page);
            self.list_as(page, PageState::Recent);
        }
        while self.recent.len() > size
            && let Some(page) = self.recent.oldest()
        {
            self.recent.remove(page);
            self.list_as(page, PageState::Old);
            self.recent.prefetch_oldest();
        }
    }

    /// Puts a page that is in no list into one, and has it volatile unless it rests.
    fn list_as(&mut self, mut page: NonNull<Page>, state: PageState) {
        // SAFETY: unpinned pages are live, and used by one thread at a time.
        let it = unsafe { page.as_mut() };
        it.state = state;
        let (list, priority) = match state {
            PageState::Pinned => return,
            PageState::Resting => return self.resting.push(page),
            PageState::Recent => (&mut self.recent, Priority::Normal),
            PageState::Old => (&mut self.old, Priority::Low),
        };
        if let Contents::Volatile(buffer) = &mut it.contents {
            buffer.mark_volatile_with(VolatileOptions::new().priority(priority));
        }
        list.push(page);
    }

    /// Takes a page out of the list that it is in, if it is unpinned.
    pub(crate) fn remove(&mut self, mut page: NonNull<Page>) {
        // SAFETY: as in `list_as`.
        let state = &mut unsafe { page.as_mut() }.state;
        let before = std::mem::replace(state, PageState::Pinned);
        match before {
            PageState::Pinned => {}
            PageState::Resting => self.resting.remove(page),
            PageState::Recent => self.recent.remove(page),
            PageState::Old => self.old.remove(page),
        }
    }
}
