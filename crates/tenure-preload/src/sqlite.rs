//! `sqlite3_initialize`, which every use of SQLite begins with: has SQLite use the page cache
//! of `libtenure_sqlite.so`, the library beside this one, before it is initialized.
//!
//! A process may have several copies of SQLite, in libraries that are loaded for themselves.
//! So the caller's object tells which one is real: the function that the caller would have
//! found without this library.

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::reentrancy::preserve_errno;
use crate::start::print_left_out;
use crate::sys;

/// Passes the return address on.
///
/// # Safety
///
/// The conditions are SQLite's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sqlite3_initialize() -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdi, [rsp]", "jmp {}", sym initialize);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x0, x30", "b {}", sym initialize);
}

/// `SQLITE_ERROR`
const ERROR: c_int = 1;

/// Whether SQLite is told of the page cache.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Where SQLite is loaded already, its page cache is as well: the fork handlers of a program,
/// which may wait for a thread that uses SQLite, are registered after those of that library, so
/// they run before them.
pub(crate) fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
    if !sys::loaded(c"libsqlite3.so.0").is_null() {
        find_install();
    }
}

type Initialize = unsafe extern "C" fn() -> c_int;
type Config = unsafe extern "C" fn(c_int, ...) -> c_int;
type InstallWith = unsafe extern "C" fn(Config) -> c_int;

/// An object that calls SQLite, which stays loaded, and the function that it means.
struct Caller {
    start: AtomicUsize,
    end: AtomicUsize,
    real: AtomicUsize,
}

/// The callers that are known: the first `KNOWN` of them. SQLite itself is one, and calls the
/// function each time that it allocates.
static CALLERS: [Caller; 16] = [const {
    Caller {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        real: AtomicUsize::new(0),
    }
}; 16];
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static LOCK: Mutex<()> = Mutex::new(());

unsafe extern "C" fn initialize(caller: usize) -> c_int {
    let real = known(caller).or_else(|| preserve_errno(|| resolve(caller)));
    match real {
        // SAFETY: SQLite's function of that name.
        Some(real) => unsafe {
            std::mem::transmute::<*mut c_void, Initialize>(std::ptr::with_exposed_provenance_mut(
                real,
            ))()
        },
        None => ERROR,
    }
}

fn known(caller: usize) -> Option<usize> {
    let callers = &CALLERS[..KNOWN.load(Ordering::Acquire)];
    let has = |it: &&Caller| {
        let (start, end) = (&it.start, &it.end);
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&caller)
    };
    let found = callers.iter().find(has)?;
    Some(found.real.load(Ordering::Relaxed))
}

/// Finds the real function, and tells that SQLite of the page cache if it is new.
#[cold]
fn resolve(caller: usize) -> Option<usize> {
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let real = find(caller)?;
    let count = KNOWN.load(Ordering::Relaxed);
    let is_new = CALLERS[..count]
        .iter()
        .all(|it| it.real.load(Ordering::Relaxed) != real.expose_provenance());
    if let Some(place) = CALLERS.get(count)
        && let Some(addresses) = sys::addresses_of_object(caller)
    {
        if is_new && IS_ON.load(Ordering::Relaxed) {
            install(real);
        }
        place.start.store(addresses.start, Ordering::Relaxed);
        place.end.store(addresses.end, Ordering::Relaxed);
        place
            .real
            .store(real.expose_provenance(), Ordering::Relaxed);
        KNOWN.store(count + 1, Ordering::Release);
    }
    Some(real.expose_provenance())
}

/// Finds the function that the caller means: that of its own object or of the libraries which
/// that needs, else the next one behind this library, else that of a libsqlite3 that is
/// loaded for itself.
fn find(caller: usize) -> Option<*mut c_void> {
    const NAME: &CStr = c"sqlite3_initialize";
    let own = sqlite3_initialize as *mut c_void;
    let is_real = |found: &*mut c_void| !found.is_null() && *found != own;
    let object = sys::object_of(std::ptr::with_exposed_provenance(caller));
    let of_caller = object.map(|(file, _)| sys::symbol_in(sys::loaded(file), NAME));
    of_caller
        .filter(is_real)
        .or_else(|| Some(sys::next_symbol(NAME)).filter(is_real))
        .or_else(|| Some(sys::symbol_in(sys::loaded(c"libsqlite3.so.0"), NAME)).filter(is_real))
}

/// Tells the SQLite that has this function of the page cache. That library prints why SQLite
/// refuses it.
fn install(initialize: *mut c_void) {
    let config = sys::object_of(initialize)
        .map(|(file, _)| sys::symbol_in(sys::loaded(file), c"sqlite3_config"))
        .filter(|config| !config.is_null());
    let (Some(config), Some(install)) = (config, find_install()) else {
        return print_left_out(
            "sqlite-cache",
            &"there is no libtenure_sqlite.so beside the preloaded library, or no sqlite3_config",
        );
    };
    // SAFETY: both are the functions of these names. SQLite is not initialized yet, so no
    // other thread uses it; if it is, it refuses.
    unsafe {
        let config = std::mem::transmute::<*mut c_void, Config>(config);
        std::mem::transmute::<*mut c_void, InstallWith>(install)(config);
    }
}

/// Loads `libtenure_sqlite.so` from the folder of this library.
fn find_install() -> Option<*mut c_void> {
    const NAME: &[u8] = b"libtenure_sqlite.so\0";
    let (file, _) = sys::object_of(sqlite3_initialize as *const c_void)?;
    let file = file.to_bytes();
    let folder = &file[..file.iter().rposition(|byte| *byte == b'/')? + 1];
    let mut path = [0; libc::PATH_MAX as usize];
    let len = folder.len() + NAME.len();
    path.get_mut(..folder.len())?.copy_from_slice(folder);
    path.get_mut(folder.len()..len)?.copy_from_slice(NAME);
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    // SAFETY: the constructors of that library register fork handlers only.
    let library = unsafe { sys::load(path) };
    let install = sys::symbol_in(library, c"tenure_sqlite3_install_with");
    (!install.is_null()).then_some(install)
}
