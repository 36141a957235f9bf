//! The few functions of SQLite that the benchmark calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use tenure_sqlite::Config;

type Object = *mut c_void;
type Open = unsafe extern "C" fn(*const c_char, *mut Object) -> c_int;
type Bind = unsafe extern "C" fn(Object, c_int, i64) -> c_int;
type Bytes = unsafe extern "C" fn(Object, c_int) -> c_int;
type Call = unsafe extern "C" fn(Object) -> c_int;
type Prepare =
    unsafe extern "C" fn(Object, *const c_char, c_int, *mut Object, *mut *const c_char) -> c_int;

pub struct Sqlite {
    pub config: Config,
    open: Open,
    prepare: Prepare,
    bind: Bind,
    step: Call,
    bytes: Bytes,
    reset: Call,
    finalize: Call,
}

pub struct Statement<'a> {
    sqlite: &'a Sqlite,
    object: Object,
}

pub struct Connection<'a> {
    sqlite: &'a Sqlite,
    db: Object,
}

const ROW: c_int = 100;
const DONE: c_int = 101;

impl Sqlite {
    pub fn load(library: &str) -> Self {
        let name = CString::new(library).unwrap();
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{name:?}");
        let find = |name: &CStr| {
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        unsafe {
            Self {
                config: std::mem::transmute::<Object, Config>(find(c"sqlite3_config")),
                open: std::mem::transmute::<Object, Open>(find(c"sqlite3_open")),
                prepare: std::mem::transmute::<Object, Prepare>(find(c"sqlite3_prepare_v2")),
                bind: std::mem::transmute::<Object, Bind>(find(c"sqlite3_bind_int64")),
                step: std::mem::transmute::<Object, Call>(find(c"sqlite3_step")),
                bytes: std::mem::transmute::<Object, Bytes>(find(c"sqlite3_column_bytes")),
                reset: std::mem::transmute::<Object, Call>(find(c"sqlite3_reset")),
                finalize: std::mem::transmute::<Object, Call>(find(c"sqlite3_finalize")),
            }
        }
    }

    pub fn open(&self, file: &Path) -> Connection<'_> {
        let file = CString::new(file.to_str().unwrap()).unwrap();
        let mut db = null_mut();
        assert_eq!(unsafe { (self.open)(file.as_ptr(), &mut db) }, 0);
        Connection { sqlite: self, db }
    }
}

impl<'a> Connection<'a> {
    pub fn prepare(&self, sql: &str) -> Statement<'a> {
        let text = CString::new(sql).unwrap();
        let mut object = null_mut();
        let prepare = self.sqlite.prepare;
        let mut rest = null();
        let code = unsafe { prepare(self.db, text.as_ptr(), -1, &mut object, &mut rest) };
        assert_eq!(code, 0, "{sql}");
        let sqlite = self.sqlite;
        Statement { sqlite, object }
    }

    pub fn run(&self, sql: &str) {
        if !sql.is_empty() {
            self.prepare(sql).run(None);
        }
    }
}

impl Statement<'_> {
    /// Runs the statement to its end. Returns the length of the last value.
    pub fn run(&mut self, argument: Option<i64>) -> c_int {
        let mut bytes = 0;
        unsafe {
            if let Some(argument) = argument {
                assert_eq!((self.sqlite.bind)(self.object, 1, argument), 0);
            }
            loop {
                match (self.sqlite.step)(self.object) {
                    ROW => bytes = (self.sqlite.bytes)(self.object, 0),
                    DONE => break,
                    code => panic!("SQLite answers {code}"),
                }
            }
            (self.sqlite.reset)(self.object);
        }
        bytes
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        unsafe { (self.sqlite.finalize)(self.object) };
    }
}
