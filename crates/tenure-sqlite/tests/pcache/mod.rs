//! A cache that is called as SQLite calls it.

use tenure_sqlite::{Pcache, PcachePage, methods};

/// The extra bytes of a page.
pub const EXTRA: i32 = 136;

/// The `cache_size` of a new cache, in pages.
pub const SIZE: i32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Create {
    Never,
    IfEasy,
    Always,
}

/// A cache, and the size of its pages.
pub struct TestCache(*mut Pcache, usize);

/// A pinned page, and its size.
#[derive(Clone, Copy)]
pub struct TestPage(*mut PcachePage, usize);

impl TestCache {
    pub fn new(page_bytes: i32, is_purgeable: bool) -> Self {
        assert_eq!(unsafe { (methods().init)(methods().arg) }, 0);
        let cache = unsafe { (methods().create)(page_bytes, EXTRA, is_purgeable.into()) };
        assert!(!cache.is_null());
        unsafe { (methods().cachesize)(cache, SIZE) };
        Self(cache, page_bytes as usize)
    }

    pub fn fetch(&self, key: u32, create: Create) -> Option<TestPage> {
        let page = unsafe { (methods().fetch)(self.0, key, create as i32) };
        (!page.is_null()).then_some(TestPage(page, self.1))
    }

    pub fn unpin(&self, page: TestPage, discard: bool) {
        unsafe { (methods().unpin)(self.0, page.0, discard.into()) };
    }

    /// Unpins so many other pages that none of those before rests.
    pub fn wake(&self) {
        for key in 0..64 {
            let other = self.fetch(u32::MAX - key, Create::Always).unwrap();
            self.unpin(other, false);
        }
    }

    pub fn rekey(&self, page: TestPage, old: u32, new: u32) {
        unsafe { (methods().rekey)(self.0, page.0, old, new) };
    }

    pub fn truncate(&self, limit: u32) {
        unsafe { (methods().truncate)(self.0, limit) };
    }

    pub fn set_size(&self, pages: i32) {
        unsafe { (methods().cachesize)(self.0, pages) };
    }

    pub fn shrink(&self) {
        unsafe { (methods().shrink)(self.0) };
    }

    pub fn len(&self) -> usize {
        unsafe { (methods().pagecount)(self.0) as usize }
    }
}

impl Drop for TestCache {
    fn drop(&mut self) {
        unsafe { (methods().destroy)(self.0) };
    }
}

impl TestPage {
    pub fn addr(&self) -> usize {
        self.0.addr()
    }

    /// Returns the contents and the extra bytes.
    fn parts(&self) -> [*mut [u8]; 2] {
        let PcachePage { buf, extra } = unsafe { &*self.0 };
        [(*buf, self.1), (*extra, EXTRA as usize)]
            .map(|(start, len)| std::ptr::slice_from_raw_parts_mut(start.cast(), len))
    }

    /// Writes a value to all of the page, and to its extra bytes.
    pub fn fill(&self, value: u64) {
        for part in self.parts() {
            for word in unsafe { &mut *part }.chunks_exact_mut(8) {
                word.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }

    /// Returns the value that all of the page has.
    pub fn value(&self) -> u64 {
        let parts = self.parts().map(|part| unsafe { &*part });
        let value = u64::from_ne_bytes(parts[0][..8].try_into().unwrap());
        for part in parts {
            let is_same = |word: &[u8]| word == value.to_ne_bytes();
            assert!(part.chunks_exact(8).all(is_same), "{value} in a part only");
        }
        value
    }

    pub fn is_zero(&self) -> bool {
        self.value() == 0
    }

    /// Reads behind the page.
    pub fn overrun(&self) -> [u8; 16] {
        unsafe {
            (*self.0)
                .buf
                .cast::<u8>()
                .add(self.1)
                .cast::<[u8; 16]>()
                .read()
        }
    }
}
