//! Telling SQLite of the page cache.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr;

use crate::ffi::{CONFIG_PCACHE2, Config, ERROR, MISUSE, OK, PcacheMethods};
use crate::message::print;
use crate::methods::METHODS;

/// The reason why SQLite does not use the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// The process has no `sqlite3_config`, and there is no libsqlite3.so.0 to load.
    NotFound,
    /// SQLite is initialized already.
    Initialized,
    /// SQLite has answered with this error.
    Refused(i32),
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str(
                "there is no libsqlite3.so.0 to load: where SQLite is linked statically, pass \
                 its sqlite3_config to tenure_sqlite3_install_with",
            ),
            Self::Initialized => f.write_str(
                "SQLite is initialized already: install the page cache before the first \
                 connection, and before sqlite3_initialize",
            ),
            Self::Refused(code) => write!(f, "sqlite3_config has answered {code}"),
        }
    }
}

impl std::error::Error for InstallError {}

impl InstallError {
    fn code(self) -> c_int {
        match self {
            Self::NotFound => ERROR,
            Self::Initialized => MISUSE,
            Self::Refused(code) => code,
        }
    }
}

/// Has the process's dynamic libsqlite3 use the page cache: `sqlite3_config` with
/// SQLITE_CONFIG_PCACHE2. Loads `libsqlite3.so.0` if the process has none yet.
///
/// # Errors
///
/// As described there; SQLite then goes on as before.
///
/// # Safety
///
/// No other thread uses SQLite meanwhile, as `sqlite3_config` demands.
pub unsafe fn install() -> Result<(), InstallError> {
    let config = find(c"sqlite3_config").ok_or(InstallError::NotFound)?;
    // SAFETY: a function of this name is SQLite's; the rest is the caller's contract.
    unsafe { install_with(std::mem::transmute::<*mut c_void, Config>(config)) }
}

/// Has the SQLite whose `sqlite3_config` this is use the page cache.
///
/// # Errors
///
/// [`InstallError::Initialized`], [`InstallError::Refused`].
///
/// # Safety
///
/// The function is `sqlite3_config`, and no other thread uses that SQLite meanwhile.
pub unsafe fn install_with(config: Config) -> Result<(), InstallError> {
    tenure::prepare();
    // SAFETY: the option takes a pointer to methods, which SQLite copies.
    match unsafe { config(CONFIG_PCACHE2, &raw const METHODS) } {
        OK => Ok(()),
        MISUSE => Err(InstallError::Initialized),
        code => Err(InstallError::Refused(code)),
    }
}

/// Returns the methods, for a program that calls `sqlite3_config` itself.
pub fn methods() -> &'static PcacheMethods {
    &METHODS
}

/// Finds a function of SQLite in what the program is linked to, or in libsqlite3 by itself.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let linked = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !linked.is_null() {
        return Some(linked);
    }
    // A module that is loaded for itself, as Python's, finds the same library.
    // SAFETY: loading SQLite runs no code of it.
    let library = unsafe { libc::dlopen(c"libsqlite3.so.0".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library was just loaded, and stays.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns SQLite's code of the result, after printing an error.
fn report(result: Result<(), InstallError>) -> c_int {
    match result {
        Ok(()) => OK,
        Err(error) => {
            print(format_args!("SQLite's page cache stays as it is: {error}"));
            error.code()
        }
    }
}

/// `int tenure_sqlite3_install(void)`: does what [`install`] does. Returns 0 (SQLITE_OK),
/// or SQLITE_MISUSE or SQLITE_ERROR after printing a message to standard error.
///
/// # Safety
///
/// As for [`install`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_sqlite3_install() -> c_int {
    // SAFETY: the caller's contract.
    report(unsafe { install() })
}

/// `int tenure_sqlite3_install_with(int (*config)(int, ...))`: does what [`install_with`]
/// does. Returns as [`tenure_sqlite3_install`] does; SQLITE_MISUSE for NULL.
///
/// # Safety
///
/// As for [`install_with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_sqlite3_install_with(config: Option<Config>) -> c_int {
    match config {
        // SAFETY: the caller's contract.
        Some(config) => report(unsafe { install_with(config) }),
        None => MISUSE,
    }
}

/// `const sqlite3_pcache_methods2 *tenure_sqlite3_methods(void)`: returns the methods, for
/// `sqlite3_config(SQLITE_CONFIG_PCACHE2, ...)`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_sqlite3_methods() -> *const PcacheMethods {
    ptr::from_ref(methods())
}

/// Asks the loader for what the page cache will need of it. Its first use may be in a thread for
/// which another one waits, in a constructor and so with the loader's lock. The preloaded library
/// calls this.
#[doc(hidden)]
#[unsafe(no_mangle)]
pub extern "C" fn tenure_sqlite3_prepare() {
    tenure::prepare();
    // The first thread that is started looks a function up. Where none can be started there is
    // nothing to prepare.
    let thread = std::thread::Builder::new().spawn(|| ());
    let _ = thread.map(std::thread::JoinHandle::join);
}
