//! The pages of a cache by their keys. Insertion never fails: without memory for more
//! buckets the chains become longer.

use std::alloc::{GlobalAlloc as _, Layout, System};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use crate::page::Page;

const FIRST_BUCKETS: usize = 64;

/// A hash table whose chains go through the pages.
pub(crate) struct Index {
    /// A power of two of them. Keys are numbers of pages, which lie close together.
    buckets: Buckets,
    len: usize,
}

/// A list of chains, which is the program's allocator's also in the shared library.
struct Buckets {
    first: NonNull<*mut Page>,
    len: usize,
}

impl Index {
    /// Returns `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            buckets: Buckets::empty(FIRST_BUCKETS)?,
            len: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bucket(&self, key: u32) -> usize {
        key as usize & (self.buckets.len() - 1)
    }

    pub(crate) fn get(&self, key: u32) -> Option<NonNull<Page>> {
        let mut next = self.buckets[self.bucket(key)];
        while let Some(page) = NonNull::new(next) {
            // SAFETY: pages in the index are live.
            let it = unsafe { page.as_ref() };
            if it.key == key {
                return Some(page);
            }
            next = it.chain;
        }
        None
    }

    /// Inserts a live page, whose key is not in the index.
    pub(crate) fn insert(&mut self, page: NonNull<Page>) {
        if self.len >= self.buckets.len() {
            self.grow();
        }
        self.len += 1;
        self.link(page);
    }

    fn link(&mut self, mut page: NonNull<Page>) {
        // SAFETY: the page is live, and the cache uses it from one thread at a time.
        let it = unsafe { page.as_mut() };
        let bucket = self.bucket(it.key);
        it.chain = self.buckets[bucket];
        self.buckets[bucket] = page.as_ptr();
    }

    /// Removes a page that is in the index.
    pub(crate) fn remove(&mut self, page: NonNull<Page>) {
        // SAFETY: pages in the index are live.
        let (key, after) = unsafe { (page.as_ref().key, page.as_ref().chain) };
        let bucket = self.bucket(key);
        let mut at: *mut *mut Page = &raw mut self.buckets[bucket];
        // SAFETY: `at` is the bucket, or the chain of a live page; the page is in its chain.
        unsafe {
            while *at != page.as_ptr() {
                at = &raw mut (**at).chain;
            }
            *at = after;
        }
        self.len -= 1;
    }

    /// Returns a page with a key of at least `limit`, in the bucket or one behind it, which
    /// becomes the bucket to look in next.
    pub(crate) fn next_from(&self, limit: u32, bucket: &mut usize) -> Option<NonNull<Page>> {
        while *bucket < self.buckets.len() {
            let mut next = self.buckets[*bucket];
            while let Some(page) = NonNull::new(next) {
                // SAFETY: pages in the index are live.
                let it = unsafe { page.as_ref() };
                if it.key >= limit {
                    return Some(page);
                }
                next = it.chain;
            }
            *bucket += 1;
        }
        None
    }

    fn grow(&mut self) {
        let Some(buckets) = Buckets::empty(self.buckets.len() * 2) else {
            return;
        };
        let before = std::mem::replace(&mut self.buckets, buckets);
        for &(mut next) in before.iter() {
            while let Some(page) = NonNull::new(next) {
                // SAFETY: pages in the index are live.
                next = unsafe { page.as_ref() }.chain;
                self.link(page);
            }
        }
    }
}

impl Buckets {
    /// Returns `None` if there is no memory.
    fn empty(len: usize) -> Option<Self> {
        let layout = Layout::array::<*mut Page>(len).ok()?;
        // SAFETY: an index has at least one bucket.
        let first = NonNull::new(unsafe { System.alloc_zeroed(layout) })?;
        Some(Self {
            first: first.cast(),
            len,
        })
    }
}

impl Deref for Buckets {
    type Target = [*mut Page];

    fn deref(&self) -> &[*mut Page] {
        // SAFETY: `empty` has allocated so many, of null pointers.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl DerefMut for Buckets {
    fn deref_mut(&mut self) -> &mut [*mut Page] {
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        let layout = Layout::for_value::<[*mut Page]>(self);
        // SAFETY: `empty` has allocated it with this layout.
        unsafe { System.dealloc(self.first.as_ptr().cast(), layout) };
    }
}
