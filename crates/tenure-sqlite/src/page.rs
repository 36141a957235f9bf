//! A page of a cache: what SQLite is shown of it, and its memory, which is the program's
//! allocator's also in the shared library.

use std::alloc::{GlobalAlloc as _, Layout, System};
use std::ptr::{self, NonNull, null_mut};

use tenure::{VolatileBuffer, page_size};

use crate::ffi::PcachePage;

/// A page, in ordinary memory, followed by SQLite's extra bytes.
#[repr(C)]
pub(crate) struct Page {
    /// Comes first: SQLite's pointer is that of the page.
    shown: PcachePage,
    pub(crate) key: u32,
    pub(crate) state: PageState,
    /// The next page of the same bucket of the index.
    pub(crate) chain: *mut Page,
    /// The neighbours in the list of unpinned pages.
    pub(crate) newer: *mut Page,
    pub(crate) older: *mut Page,
    pub(crate) contents: Contents,
}

/// Whether SQLite uses a page, and if not, which list has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    Pinned,
    /// Among the last few that were unpinned: nonvolatile still.
    Resting,
    /// Among the last `cache_size` pages that were unpinned before those.
    Recent,
    /// Unpinned before those.
    Old,
}

/// The memory of a page's contents.
pub(crate) enum Contents {
    Volatile(VolatileBuffer),
    Ordinary(NonNull<u8>),
}

/// The sizes of all pages of a cache, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) page: usize,
    pub(crate) extra: usize,
}

/// SQLite reads so many bytes past the end of a page, and may find anything there.
pub(crate) const OVERRUN_BYTES: usize = 16;

pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// The alignment of what SQLite keeps in the extra bytes.
const EXTRA_ALIGN: usize = 16;

impl Sizes {
    /// Returns `None` if the sizes are larger than memory can be.
    pub(crate) fn new(page: usize, extra: usize) -> Option<Self> {
        let sizes = Self { page, extra };
        (sizes.of_record().is_some() && sizes.of_contents().is_some()).then_some(sizes)
    }

    /// Returns the layout of a [`Page`] with its extra bytes, and where those begin.
    fn of_record(self) -> Option<(Layout, usize)> {
        let extra = Layout::from_size_align(self.extra, EXTRA_ALIGN).ok()?;
        Layout::new::<Page>().extend(extra).ok()
    }

    fn of_contents(self) -> Option<Layout> {
        let bytes = self.page.checked_add(OVERRUN_BYTES)?;
        Layout::from_size_align(bytes, EXTRA_ALIGN).ok()
    }

    /// Returns the bytes of a page with what belongs to it.
    pub(crate) fn bytes(self) -> usize {
        self.page + self.extra + size_of::<Page>()
    }

    /// Returns the memory that a page with volatile contents takes: these are whole pages of
    /// the machine.
    pub(crate) fn volatile_bytes(self) -> usize {
        self.bytes() - self.page + self.page.next_multiple_of(page_size())
    }
}

impl Contents {
    /// Allocates ordinary memory.
    pub(crate) fn ordinary(sizes: Sizes) -> Option<Self> {
        let layout = sizes.of_contents()?;
        // SAFETY: the layout is not empty: it has the overrun.
        NonNull::new(unsafe { System.alloc_zeroed(layout) }).map(Self::Ordinary)
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Volatile(buffer) => buffer.range().as_ptr(),
            Self::Ordinary(start) => start.as_ptr(),
        }
    }

    fn free(self, sizes: Sizes) {
        if let (Self::Ordinary(start), Some(layout)) = (self, sizes.of_contents()) {
            // SAFETY: `ordinary` has allocated it with the layout of the cache's sizes.
            unsafe { System.dealloc(start.as_ptr(), layout) };
        }
    }
}

impl Page {
    /// Fetches what SQLite uses next into the CPU's cache: the beginning of the contents, and
    /// the extra bytes, which lie behind this. They come while the page is taken out of its list.
    #[inline]
    pub(crate) fn prefetch_for_use(&self) {
        /// The beginning of this is there already. SQLite 3.40 has 208 extra bytes.
        const LINES: usize = 4;
        prefetch(self.shown.buf.cast());
        self.prefetch_word();
        let start = ptr::from_ref(self).cast::<u8>();
        for line in 1..=LINES {
            prefetch(start.wrapping_add(line * CACHE_LINE_BYTES));
        }
    }

    /// Fetches the state of volatile contents into the CPU's cache.
    #[inline]
    pub(crate) fn prefetch_word(&self) {
        if let Contents::Volatile(buffer) = &self.contents {
            prefetch(buffer.state_address());
        }
    }

    /// Makes a page; `None` if there is no memory, and the contents are freed then.
    pub(crate) fn new(sizes: Sizes, contents: Contents, key: u32) -> Option<NonNull<Self>> {
        let (layout, extra) = sizes.of_record()?;
        // SAFETY: the layout is not empty: it has a `Page`.
        let Some(start) = NonNull::new(unsafe { System.alloc_zeroed(layout) }) else {
            contents.free(sizes);
            return None;
        };
        let page: NonNull<Self> = start.cast();
        // SAFETY: the allocation has a `Page`, aligned, and then the extra bytes.
        unsafe {
            page.write(Self {
                shown: PcachePage {
                    buf: contents.start().cast(),
                    extra: start.add(extra).as_ptr().cast(),
                },
                key,
                state: PageState::Pinned,
                chain: null_mut(),
                newer: null_mut(),
                older: null_mut(),
                contents,
            });
        }
        Some(page)
    }

    /// Makes the page of another key new: zeros, also in the extra bytes.
    ///
    /// # Safety
    ///
    /// The page is nonvolatile, has these sizes, and nobody uses its contents.
    pub(crate) unsafe fn reset(&mut self, key: u32, sizes: Sizes) {
        self.key = key;
        // SAFETY: both parts have these sizes (the caller's contract).
        unsafe {
            self.shown.buf.cast::<u8>().write_bytes(0, sizes.page);
            self.shown.extra.cast::<u8>().write_bytes(0, sizes.extra);
        }
    }

    /// Frees a page.
    ///
    /// # Safety
    ///
    /// [`new`](Self::new) has made it with these sizes, and nothing uses it any more.
    pub(crate) unsafe fn free(page: NonNull<Self>, sizes: Sizes) {
        // SAFETY: the page is live, and not used after this (the caller's contract).
        unsafe { page.read() }.contents.free(sizes);
        if let Some((layout, _)) = sizes.of_record() {
            // SAFETY: `new` has allocated it with this layout.
            unsafe { System.dealloc(page.cast().as_ptr(), layout) };
        }
    }
}

/// Fetches the cache line at an address, which may be any.
#[inline]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(clippy::missing_const_for_fn, reason = "it is not on x86-64")
)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the CPU has SSE; a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
