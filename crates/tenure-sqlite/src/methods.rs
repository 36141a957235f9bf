//! The methods that SQLite calls: they convert, and nothing else.

use std::alloc::{Layout, alloc};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::Features;

use crate::cache::{Cache, Create, Kind};
use crate::ffi::{OK, Pcache, PcacheMethods, PcachePage};
use crate::message::print;
use crate::page::{Page, Sizes};

pub(crate) static METHODS: PcacheMethods = PcacheMethods {
    version: 1,
    arg: null_mut(),
    init,
    shutdown,
    create,
    cachesize,
    pagecount,
    fetch,
    unpin,
    rekey,
    truncate,
    destroy,
    shrink,
};

unsafe extern "C" fn init(_: *mut c_void) -> c_int {
    OK
}

unsafe extern "C" fn shutdown(_: *mut c_void) {}

unsafe extern "C" fn create(page: c_int, extra: c_int, purgeable: c_int) -> *mut Pcache {
    let bytes = |size: c_int| usize::try_from(size).ok();
    let sizes = bytes(page).zip(bytes(extra));
    let Some(sizes) = sizes.and_then(|(page, extra)| Sizes::new(page, extra)) else {
        return null_mut();
    };
    let kind = match purgeable {
        0 => Kind::Kept,
        _ if can_offer() => Kind::Volatile,
        _ => Kind::Bounded,
    };
    let Some(cache) = Cache::new(kind, sizes) else {
        return null_mut();
    };
    // SAFETY: the layout is not empty.
    let place: *mut Cache = unsafe { alloc(Layout::new::<Cache>()) }.cast();
    if place.is_null() {
        return null_mut();
    }
    // SAFETY: just allocated with the layout of a cache.
    unsafe { place.write(cache) };
    place.cast()
}

/// Returns whether the kernel can be offered memory, and says once that it cannot.
fn can_offer() -> bool {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    let features = Features::get();
    let can_offer = features.sigbus_on_missing() && features.madv_populate.is_ok();
    if !can_offer && !HAS_SAID.swap(true, Ordering::Relaxed) {
        print(format_args!(
            "volatile memory is unavailable here (see `tenure doctor`): SQLite's caches hold \
             cache_size pages at most"
        ));
    }
    can_offer
}

/// # Safety
///
/// [`create`] has made the cache, it is not destroyed, and no other thread uses it: SQLite
/// holds a mutex of the cache's.
unsafe fn cache<'a>(cache: *mut Pcache) -> &'a mut Cache {
    // SAFETY: the caller's contract.
    unsafe { &mut *cache.cast() }
}

unsafe extern "C" fn cachesize(it: *mut Pcache, pages: c_int) {
    // SAFETY: SQLite passes caches that `create` has made, here and below.
    let cache = unsafe { cache(it) };
    cache.set_size(usize::try_from(pages).unwrap_or(0));
}

unsafe extern "C" fn pagecount(it: *mut Pcache) -> c_int {
    // SAFETY: as in `cachesize`.
    let len = unsafe { cache(it) }.len();
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn fetch(it: *mut Pcache, key: c_uint, create: c_int) -> *mut PcachePage {
    let create = match create {
        0 => Create::Never,
        1 => Create::IfEasy,
        _ => Create::Always,
    };
    // SAFETY: as in `cachesize`.
    let page = unsafe { cache(it) }.fetch(key, create);
    page.map_or(null_mut(), |page| page.cast().as_ptr())
}

/// Returns the page that SQLite has a pointer to: a page begins with what SQLite sees.
fn page(page: *mut PcachePage) -> Option<NonNull<Page>> {
    NonNull::new(page.cast())
}

unsafe extern "C" fn unpin(it: *mut Pcache, pinned: *mut PcachePage, discard: c_int) {
    if let Some(page) = page(pinned) {
        // SAFETY: as in `cachesize`.
        unsafe { cache(it) }.unpin(page, discard != 0);
    }
}

unsafe extern "C" fn rekey(it: *mut Pcache, pinned: *mut PcachePage, _: c_uint, new: c_uint) {
    if let Some(page) = page(pinned) {
        // SAFETY: as in `cachesize`.
        unsafe { cache(it) }.rekey(page, new);
    }
}

unsafe extern "C" fn truncate(it: *mut Pcache, limit: c_uint) {
    // SAFETY: as in `cachesize`.
    unsafe { cache(it) }.truncate(limit);
}

unsafe extern "C" fn destroy(it: *mut Pcache) {
    // SAFETY: `create` has allocated it as a box does, and SQLite does not use it again.
    drop(unsafe { Box::from_raw(it.cast::<Cache>()) });
}

unsafe extern "C" fn shrink(it: *mut Pcache) {
    // SAFETY: as in `cachesize`.
    unsafe { cache(it) }.shrink();
}
