//! LMDB, a database that processes map: the library of the machine, where it has one.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;

use tempfile::TempDir;

use super::{Copies, LEN, byte_of, key_of};
use crate::measure::prelude::*;

const NO_SYNC: c_uint = 0x10000;
const READ_ONLY: c_uint = 0x20000;
const MAP_BYTES: usize = 64 << 20;
const NOT_FOUND: c_int = -30798;

/// `MDB_val`.
#[repr(C)]
struct Bytes {
    len: usize,
    start: *const c_void,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Self {
            len: bytes.len(),
            start: bytes.as_ptr().cast(),
        }
    }
}

type Handle = *mut c_void;

/// The functions of the library, which stays loaded.
struct Library {
    env_create: unsafe extern "C" fn(*mut Handle) -> c_int,
    env_set_mapsize: unsafe extern "C" fn(Handle, usize) -> c_int,
    env_open: unsafe extern "C" fn(Handle, *const c_char, c_uint, libc::mode_t) -> c_int,
    env_close: unsafe extern "C" fn(Handle),
    txn_begin: unsafe extern "C" fn(Handle, Handle, c_uint, *mut Handle) -> c_int,
    txn_commit: unsafe extern "C" fn(Handle) -> c_int,
    txn_abort: unsafe extern "C" fn(Handle),
    txn_reset: unsafe extern "C" fn(Handle),
    txn_renew: unsafe extern "C" fn(Handle) -> c_int,
    dbi_open: unsafe extern "C" fn(Handle, *const c_char, c_uint, *mut c_uint) -> c_int,
    put: unsafe extern "C" fn(Handle, c_uint, *mut Bytes, *mut Bytes, c_uint) -> c_int,
    get: unsafe extern "C" fn(Handle, c_uint, *mut Bytes, *mut Bytes) -> c_int,
}

impl Library {
    #[expect(
        clippy::missing_transmute_annotations,
        reason = "the fields have the types"
    )]
    fn load() -> Result<Self> {
        // SAFETY: the library's constructors have no requirements.
        let library = unsafe { libc::dlopen(c"liblmdb.so.0".as_ptr(), libc::RTLD_NOW) };
        ensure!(!library.is_null(), "liblmdb.so.0 is not installed");
        let find = |name: &CStr| {
            // SAFETY: the library is loaded.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            ensure!(!found.is_null(), "liblmdb.so.0 has no {name:?}");
            Ok(found)
        };
        // SAFETY: lmdb.h declares the functions of these names with these types.
        unsafe {
            Ok(Self {
                env_create: transmute::<Handle, _>(find(c"mdb_env_create")?),
                env_set_mapsize: transmute::<Handle, _>(find(c"mdb_env_set_mapsize")?),
                env_open: transmute::<Handle, _>(find(c"mdb_env_open")?),
                env_close: transmute::<Handle, _>(find(c"mdb_env_close")?),
                txn_begin: transmute::<Handle, _>(find(c"mdb_txn_begin")?),
                txn_commit: transmute::<Handle, _>(find(c"mdb_txn_commit")?),
                txn_abort: transmute::<Handle, _>(find(c"mdb_txn_abort")?),
                txn_reset: transmute::<Handle, _>(find(c"mdb_txn_reset")?),
                txn_renew: transmute::<Handle, _>(find(c"mdb_txn_renew")?),
                dbi_open: transmute::<Handle, _>(find(c"mdb_dbi_open")?),
                put: transmute::<Handle, _>(find(c"mdb_put")?),
                get: transmute::<Handle, _>(find(c"mdb_get")?),
            })
        }
    }
}

fn done(status: c_int) -> Result<()> {
    ensure!(status == 0, "LMDB returned {status}");
    Ok(())
}

/// A database in memory, and a transaction that reads it.
pub struct Lmdb {
    lmdb: Library,
    environment: Handle,
    database: c_uint,
    /// Null before the first look-up.
    reader: Handle,
    _folder: TempDir,
}

impl Lmdb {
    pub fn open() -> Result<Self> {
        let library = Library::load()?;
        let folder = tempfile::tempdir_in("/dev/shm").context("a folder in /dev/shm")?;
        let path = CString::new(folder.path().as_os_str().as_bytes())?;
        let mut environment = ptr::null_mut();
        // SAFETY: the result is a valid place.
        done(unsafe { (library.env_create)(&raw mut environment) })?;
        let mut this = Self {
            lmdb: library,
            environment,
            database: 0,
            reader: ptr::null_mut(),
            _folder: folder,
        };
        // SAFETY: the environment was created, and nobody else uses it.
        done(unsafe { (this.lmdb.env_set_mapsize)(environment, MAP_BYTES) })?;
        // SAFETY: as above; the path ends with NUL.
        done(unsafe { (this.lmdb.env_open)(environment, path.as_ptr(), NO_SYNC, 0o600) })?;
        let mut database = 0;
        this.change(|library, transaction| {
            // SAFETY: the transaction is open, and the name of the only database is null.
            unsafe { (library.dbi_open)(transaction, ptr::null(), 0, &raw mut database) }
        })?;
        this.database = database;
        Ok(this)
    }

    fn change(&mut self, change: impl FnOnce(&Library, Handle) -> c_int) -> Result<()> {
        let mut transaction = ptr::null_mut();
        let begin = self.lmdb.txn_begin;
        // SAFETY: the environment is open, and this thread has no other transaction that writes.
        done(unsafe { begin(self.environment, ptr::null_mut(), 0, &raw mut transaction) })?;
        let status = change(&self.lmdb, transaction);
        // SAFETY: the transaction is open; committing ends it.
        let committed = unsafe { (self.lmdb.txn_commit)(transaction) };
        done(status)?;
        done(committed)
    }

    /// Begins to read what is there now.
    fn begin_reading(&mut self) -> Result<()> {
        if self.reader.is_null() {
            let (begin, reader) = (self.lmdb.txn_begin, &raw mut self.reader);
            // SAFETY: the environment is open.
            return done(unsafe { begin(self.environment, ptr::null_mut(), READ_ONLY, reader) });
        }
        // SAFETY: the transaction was reset.
        done(unsafe { (self.lmdb.txn_renew)(self.reader) })
    }
}

impl Copies for Lmdb {
    fn set(&mut self, key: usize) -> Result<()> {
        let (database, key_bytes, value) = (self.database, key_of(key), [byte_of(key); LEN]);
        self.change(|library, transaction| {
            let (mut key, mut value) = (Bytes::of(&key_bytes), Bytes::of(&value));
            // SAFETY: the transaction is open; key and value live longer than the call.
            unsafe { (library.put)(transaction, database, &raw mut key, &raw mut value, 0) }
        })
    }

    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        self.begin_reading()?;
        let key_bytes = key_of(key);
        let (mut key, mut value) = (Bytes::of(&key_bytes), Bytes::of(&[]));
        let (get, reader) = (self.lmdb.get, self.reader);
        // SAFETY: the transaction is open, and the key lives longer than the call.
        let status = unsafe { get(reader, self.database, &raw mut key, &raw mut value) };
        into.clear();
        if status == 0 {
            // SAFETY: the value is in the map until the transaction is reset.
            into.extend_from_slice(unsafe {
                std::slice::from_raw_parts(value.start.cast::<u8>(), value.len)
            });
        }
        // SAFETY: the transaction is open.
        unsafe { (self.lmdb.txn_reset)(reader) };
        match status {
            NOT_FOUND => Ok(false),
            status => done(status).map(|()| true),
        }
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        if !self.reader.is_null() {
            // SAFETY: begun, and not aborted yet.
            unsafe { (self.lmdb.txn_abort)(self.reader) };
        }
        // SAFETY: created by `open`, and no transaction is left.
        unsafe { (self.lmdb.env_close)(self.environment) };
    }
}
