//! The few types of SQLite's interface that a page cache needs, as `sqlite3.h` has had them
//! since SQLite 3.7.14.

use std::ffi::{c_int, c_uint, c_void};

/// `SQLITE_OK`
pub(crate) const OK: c_int = 0;
/// `SQLITE_ERROR`
pub(crate) const ERROR: c_int = 1;
/// `SQLITE_MISUSE`
pub(crate) const MISUSE: c_int = 21;
/// `SQLITE_CONFIG_PCACHE2`
pub(crate) const CONFIG_PCACHE2: c_int = 18;

/// `sqlite3_config`
pub type Config = unsafe extern "C" fn(c_int, ...) -> c_int;

/// `sqlite3_pcache`: a cache of this library's.
#[derive(Debug)]
#[repr(C)]
pub struct Pcache {
    _private: [u8; 0],
}

/// `sqlite3_pcache_page`
#[derive(Debug)]
#[repr(C)]
pub struct PcachePage {
    /// The contents of the page of the database.
    pub buf: *mut c_void,
    /// The bytes that SQLite keeps with it.
    pub extra: *mut c_void,
}

/// `sqlite3_pcache_methods2`
#[allow(missing_docs, reason = "they are described in sqlite3.h")]
#[derive(Debug)]
#[repr(C)]
pub struct PcacheMethods {
    pub version: c_int,
    pub arg: *mut c_void,
    pub init: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut c_void),
    pub create: unsafe extern "C" fn(page: c_int, extra: c_int, purgeable: c_int) -> *mut Pcache,
    pub cachesize: unsafe extern "C" fn(*mut Pcache, pages: c_int),
    pub pagecount: unsafe extern "C" fn(*mut Pcache) -> c_int,
    pub fetch: unsafe extern "C" fn(*mut Pcache, key: c_uint, create: c_int) -> *mut PcachePage,
    pub unpin: unsafe extern "C" fn(*mut Pcache, *mut PcachePage, discard: c_int),
    pub rekey: unsafe extern "C" fn(*mut Pcache, *mut PcachePage, old: c_uint, new: c_uint),
    pub truncate: unsafe extern "C" fn(*mut Pcache, limit: c_uint),
    pub destroy: unsafe extern "C" fn(*mut Pcache),
    pub shrink: unsafe extern "C" fn(*mut Pcache),
}

// SAFETY: the structure is never changed, and `arg` is not used.
unsafe impl Sync for PcacheMethods {}
