//! `sqlite3_initialize`, which every use of SQLite begins with: has SQLite use the page cache
//! of `libtenure_sqlite.so`, the library beside this one, before it is initialized.
//!
//! A process may have several copies of SQLite, in libraries that are loaded for themselves.
//! So the caller's object tells which one is real: the function that the caller would have
//! found without this library.

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

use crate::objects::{self, Object};
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

type Initialize = unsafe extern "C" fn() -> c_int;
type Config = unsafe extern "C" fn(c_int, ...) -> c_int;
type InstallWith = unsafe extern "C" fn(Config) -> c_int;

/// Whether SQLite is told of the page cache.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// `tenure_sqlite3_install_with`, if the library is there.
static INSTALL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Loads the library with the page cache, although SQLite may never be used. The first use may
/// be in a thread for which another one waits with the loader's lock. And the fork handlers of
/// a program, which may wait for a thread that uses SQLite, have to be registered after those of
/// that library, so that they run before them.
pub(crate) fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
    INSTALL.store(find_install().unwrap_or(null_mut()), Ordering::Relaxed);
}

/// An object that calls SQLite, and the function that it means.
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

/// Odd while the callers change, and another number afterwards.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The copies of SQLite that were told of the page cache, as their functions. One that is unloaded
/// and loaded again at the same address stays as it is.
static TOLD: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// The calls of dlclose that have not returned, and how often one has begun or ended.
static CLOSING: AtomicUsize = AtomicUsize::new(0);
static CLOSES: AtomicUsize = AtomicUsize::new(0);

/// Held to change the callers and the copies, and to tell SQLite: others wait for that. A fork
/// holds it as well.
struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the C library's functions may be called from any thread.
unsafe impl Sync for Lock {}

/// The forking thread may come here between the handlers.
static LOCK: Lock = Lock(UnsafeCell::new(
    libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
));

extern "C" fn lock() {
    // SAFETY: a static, which is never moved.
    unsafe { libc::pthread_mutex_lock(LOCK.0.get()) };
}

extern "C" fn unlock() {
    // SAFETY: as above. A thread that does not hold the lock gets an error.
    unsafe { libc::pthread_mutex_unlock(LOCK.0.get()) };
}

/// The lock's owner is a thread of the parent.
extern "C" fn make_lock() {
    // SAFETY: the child has no other thread.
    unsafe {
        LOCK.0
            .get()
            .write(libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP);
    }
}

/// Registers fork handlers. Those of tenure's locks, which are taken while this one is held, have
/// to be registered before.
pub(crate) fn hold_across_forks() {
    // SAFETY: this library is never unloaded. Where the registration fails there is no memory,
    // early in the process, and nothing can be done about it.
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(make_lock)) };
}

unsafe extern "C" fn initialize(caller: usize) -> c_int {
    let real = known(caller).or_else(|| preserve_errno(|| resolve(caller)));
    match real {
        // SAFETY: SQLite's function of that name.
        Some(real) => unsafe {
            std::mem::transmute::<*mut c_void, Initialize>(with_exposed_provenance_mut(real))()
        },
        None => ERROR,
    }
}

fn known(caller: usize) -> Option<usize> {
    let before = CHANGES.load(Ordering::Acquire);
    let callers = &CALLERS[..KNOWN.load(Ordering::Relaxed)];
    let has = |it: &&Caller| {
        let (start, end) = (&it.start, &it.end);
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&caller)
    };
    let found = callers
        .iter()
        .find(has)
        .map(|it| it.real.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let is_of_one_time = before.is_multiple_of(2) && CHANGES.load(Ordering::Relaxed) == before;
    found.filter(|_| is_of_one_time)
}

/// Changes what [`known`] reads. The caller holds the lock.
fn change(what: impl FnOnce()) {
    let changes = CHANGES.load(Ordering::Relaxed);
    CHANGES.store(changes + 1, Ordering::Relaxed);
    fence(Ordering::Release);
    what();
    CHANGES.store(changes + 2, Ordering::Release);
}

/// Finds the real function, and tells that SQLite of the page cache if it is new.
#[cold]
fn resolve(caller: usize) -> Option<usize> {
    let closes = CLOSES.load(Ordering::SeqCst);
    let real = find(caller)?;
    let addresses = objects::addresses_of(caller);
    lock();
    if IS_ON.load(Ordering::Relaxed) && is_new(real) {
        install(real);
    }
    // The library that is being unloaded may have been found.
    let stays = CLOSES.load(Ordering::SeqCst) == closes && CLOSING.load(Ordering::SeqCst) == 0;
    let count = KNOWN.load(Ordering::Relaxed);
    if let Some(place) = CALLERS.get(count)
        && let Some(addresses) = addresses.filter(|_| stays)
    {
        change(|| {
            place.start.store(addresses.start, Ordering::Relaxed);
            place.end.store(addresses.end, Ordering::Relaxed);
            place.real.store(real, Ordering::Relaxed);
            KNOWN.store(count + 1, Ordering::Relaxed);
        });
    }
    unlock();
    Some(real)
}

/// Returns whether this copy of SQLite is not told yet, and notes that it is. Without a place to
/// note it the copy keeps its own page cache.
fn is_new(real: usize) -> bool {
    for place in &TOLD {
        match place.load(Ordering::Relaxed) {
            0 => {
                place.store(real, Ordering::Relaxed);
                return true;
            }
            told if told == real => return false,
            _ => {}
        }
    }
    false
}

/// Closes a library: `dlclose(3)`. Other code may come to lie where callers of SQLite were.
///
/// # Safety
///
/// The conditions are those of `dlclose(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
    let real = sys::next_symbol(c"dlclose");
    if real.is_null() {
        return -1;
    }
    CLOSING.fetch_add(1, Ordering::SeqCst);
    forget();
    // SAFETY: the C library's function of this name; the rest is the caller's contract.
    let answer = unsafe { std::mem::transmute::<*mut c_void, Close>(real)(library) };
    forget();
    CLOSING.fetch_sub(1, Ordering::SeqCst);
    answer
}

fn forget() {
    CLOSES.fetch_add(1, Ordering::SeqCst);
    lock();
    change(|| KNOWN.store(0, Ordering::Relaxed));
    unlock();
}

const NAME: &CStr = c"sqlite3_initialize";

/// Finds the function that the caller means: that of its own object or of the libraries which
/// that needs, else the first that was loaded.
fn find(caller: usize) -> Option<usize> {
    let real = |object: &Object<'_>| {
        let own = (sqlite3_initialize as *const c_void).addr();
        object.definition(NAME).filter(|found| *found != own)
    };
    let needed = |object: &Object<'_>| object.needed().map(CStr::to_owned).collect();
    let of_caller = objects::find(|object| {
        let is_it = object.addresses().contains(&caller);
        is_it.then(|| (real(object), needed(object)))
    });
    let (mut found, mut names): (_, Vec<CString>) = of_caller.unwrap_or_default();
    let mut next = 0;
    while found.is_none()
        && let Some(name) = names.get(next)
    {
        let of_name = objects::find(|object| {
            let is_it = object.is_named(name);
            is_it.then(|| (real(object), needed(object)))
        });
        let (definition, more): (_, Vec<CString>) = of_name.unwrap_or_default();
        found = definition;
        for name in more {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        next += 1;
    }
    found.or_else(|| objects::find(real))
}

/// Tells the SQLite that has this function of the page cache. That library prints why SQLite
/// refuses it.
fn install(initialize: usize) {
    let install = INSTALL.load(Ordering::Relaxed);
    let config = objects::find(|object| {
        let is_it = object.addresses().contains(&initialize);
        is_it.then(|| object.definition(c"sqlite3_config"))
    });
    let (Some(config), false) = (config.flatten(), install.is_null()) else {
        return print_left_out(
            "sqlite-cache",
            &"there is no libtenure_sqlite.so beside the preloaded library, or no sqlite3_config",
        );
    };
    // SAFETY: both are the functions of these names. SQLite is not initialized yet, so no
    // other thread uses it; if it is, it refuses.
    unsafe {
        let config =
            std::mem::transmute::<*mut c_void, Config>(with_exposed_provenance_mut(config));
        std::mem::transmute::<*mut c_void, InstallWith>(install)(config);
    }
}

/// Loads `libtenure_sqlite.so` from the folder of this library, and has it ask the loader for
/// what it will need.
fn find_install() -> Option<*mut c_void> {
    const FILE: &[u8] = b"libtenure_sqlite.so\0";
    let (file, _) = sys::object_of(sqlite3_initialize as *const c_void)?;
    let file = file.to_bytes();
    let folder = &file[..file.iter().rposition(|byte| *byte == b'/')? + 1];
    let mut path = [0; libc::PATH_MAX as usize];
    let len = folder.len() + FILE.len();
    path.get_mut(..folder.len())?.copy_from_slice(folder);
    path.get_mut(folder.len()..len)?.copy_from_slice(FILE);
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    // SAFETY: the constructors of that library register fork handlers only.
    let library = unsafe { sys::load(path) };
    let prepare = sys::symbol_in(library, c"tenure_sqlite3_prepare");
    if !prepare.is_null() {
        // SAFETY: the library's function of this name.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(prepare)() };
    }
    let install = sys::symbol_in(library, c"tenure_sqlite3_install_with");
    (!install.is_null()).then_some(install)
}
