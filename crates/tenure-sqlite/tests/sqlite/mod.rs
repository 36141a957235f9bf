//! The few functions of libsqlite3 that the tests call.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null_mut;

use tenure_sqlite::Config;

type Open = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, *const c_char) -> c_int;
type Row = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Exec =
    unsafe extern "C" fn(*mut c_void, *const c_char, Row, *mut c_void, *mut *mut c_char) -> c_int;
type Errmsg = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
type BusyTimeout = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

const OPEN_READWRITE_CREATE: c_int = 0x2 | 0x4;
const OPEN_SHAREDCACHE: c_int = 0x20000;
const BUSY: c_int = 5;
const LOCKED: c_int = 6;

pub struct Sqlite {
    pub config: Config,
    open: Open,
    exec: Exec,
    errmsg: Errmsg,
    close: Close,
    busy_timeout: BusyTimeout,
}

pub struct Connection<'a> {
    sqlite: &'a Sqlite,
    db: *mut c_void,
}

fn library() -> *mut c_void {
    unsafe { libc::dlopen(c"libsqlite3.so.0".as_ptr(), libc::RTLD_NOW) }
}

pub fn is_available() -> bool {
    !library().is_null()
}

impl Sqlite {
    pub fn load() -> Self {
        let find = |name: &CStr| {
            let found = unsafe { libc::dlsym(library(), name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        unsafe {
            Self {
                config: std::mem::transmute::<*mut c_void, Config>(find(c"sqlite3_config")),
                open: std::mem::transmute::<*mut c_void, Open>(find(c"sqlite3_open_v2")),
                exec: std::mem::transmute::<*mut c_void, Exec>(find(c"sqlite3_exec")),
                errmsg: std::mem::transmute::<*mut c_void, Errmsg>(find(c"sqlite3_errmsg")),
                close: std::mem::transmute::<*mut c_void, Close>(find(c"sqlite3_close")),
                busy_timeout: std::mem::transmute::<*mut c_void, BusyTimeout>(find(
                    c"sqlite3_busy_timeout",
                )),
            }
        }
    }
}

unsafe extern "C" fn add_row(
    rows: *mut c_void,
    count: c_int,
    texts: *mut *mut c_char,
    _: *mut *mut c_char,
) -> c_int {
    let rows = unsafe { &mut *rows.cast::<Vec<String>>() };
    let texts = unsafe { std::slice::from_raw_parts(texts, count as usize) };
    let text = |text: &*mut c_char| match text.is_null() {
        true => "NULL".into(),
        false => unsafe { CStr::from_ptr(*text) }.to_string_lossy(),
    };
    rows.push(texts.iter().map(text).collect::<Vec<_>>().join("|"));
    0
}

impl<'a> Connection<'a> {
    pub fn open(sqlite: &'a Sqlite, file: &Path, is_shared: bool) -> Self {
        let file = CString::new(file.as_os_str().as_bytes()).unwrap();
        let flags = OPEN_READWRITE_CREATE | if is_shared { OPEN_SHAREDCACHE } else { 0 };
        let mut db = null_mut();
        let code = unsafe { (sqlite.open)(file.as_ptr(), &mut db, flags, std::ptr::null()) };
        assert_eq!(code, 0, "{file:?}");
        unsafe { (sqlite.busy_timeout)(db, 60_000) };
        let connection = Self { sqlite, db };
        // The writes of a killed process stay in the kernel's page cache.
        connection.run("pragma synchronous=off");
        connection
    }

    /// Runs statements. Returns their rows, or the error's code and message.
    pub fn try_run(&self, sql: &str) -> Result<Vec<String>, (c_int, String)> {
        let text = CString::new(sql).unwrap();
        let mut rows: Vec<String> = Vec::new();
        let data = (&raw mut rows).cast();
        let exec = self.sqlite.exec;
        let code = unsafe { exec(self.db, text.as_ptr(), add_row, data, null_mut()) };
        let message = || unsafe { CStr::from_ptr((self.sqlite.errmsg)(self.db)) };
        match code {
            0 => Ok(rows),
            code => Err((code, message().to_string_lossy().into_owned())),
        }
    }

    /// Runs statements that succeed.
    pub fn run(&self, sql: &str) -> Vec<String> {
        self.try_run(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// Runs a statement as often as other connections are in its way.
    pub fn run_until_free(&self, sql: &str) {
        loop {
            match self.try_run(sql) {
                Ok(_) => return,
                Err((BUSY | LOCKED, _)) => std::thread::yield_now(),
                Err(error) => panic!("{sql}: {error:?}"),
            }
        }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        assert_eq!(unsafe { (self.sqlite.close)(self.db) }, 0);
    }
}
