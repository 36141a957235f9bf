//! Start-up: reads the options and turns them on when the library is loaded.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::pool::{self, PoolOptions};
use tenure::{LockMode, lock::LockScope, teardown};
use tenure_heap::HeapOptions;
use tenure_options::{FIRST_PROGRAM, OptionRow, Options, ValueError};

use crate::allocators::{OwnFunction, SpecificFunction};
use crate::line::{self, Bytes, Line};
use crate::reentrancy::run_inside;
use crate::{allocate, allocators, c_library, map, private_heap, real, sqlite, summary, sys};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs before the program's own code, and after the constructors of most other
/// libraries, whose blocks are the real allocator's.
unsafe extern "C" fn start(_: c_int, _: *const *const c_char, environ: *const *const c_char) {
    real::resolve();
    if !sys::is_secure() {
        // SAFETY: the loader passes the environment to constructors.
        turn_on_options(unsafe { Variables::new(environ) });
    }
    sqlite::hold_across_forks();
}

fn turn_on_options(variables: Variables) {
    if !variables.is_first_program() {
        REPORTS_LEFT_OUT.store(false, Ordering::Relaxed);
    }
    let report_invalid = |row: &OptionRow, value: &[u8], error: ValueError| {
        let value = OsStr::from_bytes(value).display();
        print_left_out(format_args!("{}={value}", row.variable), &error);
    };
    let options = Options::read(|name| variables.value_of(name), report_invalid);
    if options.verbose {
        REPORTS_LEFT_OUT.store(true, Ordering::Relaxed);
    }
    if options == Options::OFF {
        return;
    }
    // Every part of tenure needs the private heap.
    if !private_heap::is_available() {
        return print_left_out("everything", &"there are not enough addresses (RLIMIT_AS)");
    }
    run_inside(|| turn_on(options));
}

/// Returns whether the environment asks for the heap, at any time after the C library's
/// own start.
pub(crate) fn wants_heap() -> bool {
    if sys::is_secure() {
        return false;
    }
    // SAFETY: the C library's environment is an array of strings that ends with NULL, or
    // null before there is one.
    let variables = unsafe { Variables::new(libc::environ.cast_const().cast()) };
    let options = Options::read(|name| variables.value_of(name), |_, _, _| {});
    options.heap_threshold_bytes.is_some()
}

/// The environment with which the program was started.
struct Variables(*const *const c_char);

impl Variables {
    /// # Safety
    ///
    /// `environ` must be null or an array of strings that ends with NULL, and must stay
    /// valid.
    unsafe fn new(environ: *const *const c_char) -> Self {
        Self(environ)
    }

    fn value_of(&self, name: &str) -> Option<&'static [u8]> {
        // SAFETY: an entry of the environment is a string, and so is its end.
        let value = self
            .find(name)
            .map(|value| unsafe { CStr::from_ptr(value) });
        value.map(CStr::to_bytes)
    }

    /// Returns whether `tenure run` did not start this program, or started it as the first,
    /// and marks the programs that this one will start; see [`FIRST_PROGRAM`].
    fn is_first_program(&self) -> bool {
        let Some(value) = self.find(FIRST_PROGRAM) else {
            return true;
        };
        // SAFETY: the value is a string.
        let is_first = unsafe { CStr::from_ptr(value) } == c"1";
        if is_first {
            // SAFETY: the strings that the kernel passes to a program are its to change, and
            // no reference to this one is left.
            unsafe { value.cast_mut().cast::<u8>().write(b'0') };
        }
        is_first
    }

    /// Returns the value of the variable, which is a string.
    fn find(&self, name: &str) -> Option<*const c_char> {
        let mut next = self.0;
        if next.is_null() {
            return None;
        }
        loop {
            // SAFETY: the loop does not pass the NULL at the end of the array.
            let entry = unsafe { *next };
            if entry.is_null() {
                return None;
            }
            // SAFETY: an entry of the environment is a string.
            let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let value = bytes.strip_prefix(name.as_bytes());
            if value.is_some_and(|rest| rest.starts_with(b"=")) {
                // SAFETY: the entry begins with the name and "=".
                return Some(unsafe { entry.add(name.len() + 1) });
            }
            // SAFETY: the entry is not the NULL at the end of the array.
            next = unsafe { next.add(1) };
        }
    }
}

/// Turns the options on, and prints those that are unavailable.
fn turn_on(options: Options) {
    let mallocs = allocators::mallocs();
    let [_, next] = mallocs;
    let mut on = options;

    tenure::prepare();
    if options.stats {
        summary::turn_on();
    }
    // Before the heap maps memory: MCL_FUTURE covers that as well.
    if options.lock
        && let Err(error) = tenure::lock::lock_all(LockScope::CurrentAndFuture, LockMode::OnFault)
    {
        print_left_out("lock=onfault", &error);
        on.lock = false;
    }
    if on.lock {
        map::turn_locked_on();
    }
    if let Some(threshold_bytes) = options.heap_threshold_bytes
        && let Err(reason) = turn_heap_on(&options, threshold_bytes)
    {
        print_left_out("heap", &reason);
        on.heap_threshold_bytes = None;
    }
    if options.exit
        && let Err(error) = teardown::enable()
    {
        print_left_out("exit=background", &error);
        on.exit = false;
    }
    if let Some(bytes) = options.pool_bytes {
        let unavailable: Option<Box<dyn std::fmt::Display>> = match on.lock {
            true => Some(Box::new("lock=onfault locks all memory")),
            false => {
                // Most programs that a script starts populate nothing.
                let pool = PoolOptions::new().max_bytes(bytes).prefill_bytes(bytes);
                let pool = pool.prefill_on_use(true);
                pool::configure(&pool.recycle_released(options.pool_released))
                    .err()
                    .map(|error| Box::new(error) as _)
            }
        };
        if let Some(reason) = unavailable {
            print_left_out("pool", &reason);
            on.pool_bytes = None;
        }
    }
    if on.pool_released && (on.pool_bytes.is_none() || !(on.munmap || on.discard)) {
        let reason = "it needs --pool, and --munmap=background or --discard=background";
        print_left_out("pool-released", &reason);
        on.pool_released = false;
    }
    if options.sqlite_cache {
        sqlite::turn_on();
    }
    if on.wants_mappings() {
        if allocators::find(mallocs) {
            map::turn_on(&on);
        } else {
            print_left_out(
                "every option for mappings",
                &"the loader does not report where allocators are",
            );
            on = on.without_mappings();
        }
    }
    if options.verbose {
        let next = sys::object_of(next).map_or(c"?", |(file, _)| file);
        print_options(&on, next);
    }
}

/// Whether this process reports options that are left out; see [`FIRST_PROGRAM`].
static REPORTS_LEFT_OUT: AtomicBool = AtomicBool::new(true);

pub(crate) fn print_left_out(option: impl std::fmt::Display, reason: &dyn std::fmt::Display) {
    if REPORTS_LEFT_OUT.load(Ordering::Relaxed) {
        line::print(format_args!("{option} is left out: {reason}"));
    }
}

#[expect(
    clippy::field_reassign_with_default,
    reason = "HeapOptions is non_exhaustive"
)]
fn turn_heap_on(set: &Options, threshold_bytes: usize) -> Result<(), HeapUnavailable> {
    if let Some(function) = allocators::own_function() {
        return Err(HeapUnavailable::OwnFunction(function));
    }
    if let Some(function) = allocators::specific_function() {
        return Err(HeapUnavailable::SpecificFunction(function));
    }
    let mut options = HeapOptions::default();
    options.threshold_bytes = threshold_bytes;
    if let Some(decay) = set.heap_dirty_decay {
        options.dirty_decay = decay;
    }
    if let Some(decay) = set.heap_muzzy_decay {
        options.muzzy_decay = decay;
    }
    tenure_heap::start(options).map_err(HeapUnavailable::Heap)?;
    c_library::find();
    allocators::find_real();
    allocate::turn_on();
    Ok(())
}

/// The reason why the heap is off.
enum HeapUnavailable {
    OwnFunction(OwnFunction),
    SpecificFunction(SpecificFunction),
    Heap(tenure::Error),
}

impl std::fmt::Display for HeapUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OwnFunction(function) => function.fmt(f),
            Self::SpecificFunction(function) => function.fmt(f),
            Self::Heap(error) => error.fmt(f),
        }
    }
}

/// Prints one line with the options that are on.
fn print_options(on: &Options, next: &CStr) {
    let size = |bytes: Option<usize>| Bytes(bytes.unwrap_or(0) as u64);
    let ms = |decay: Option<Duration>| decay.unwrap_or_default().as_millis();
    let heap_bytes = on.heap_threshold_bytes;
    let populate_bytes = on.populate_bytes;
    let pool_bytes = on.pool_bytes;
    let mut line = Line::new();
    let name = sys::program_name().to_string_lossy();
    line.add(format_args!("tenure: {name} (process {}): ", sys::pid()));
    for (is_on, what) in [
        (
            heap_bytes.is_some(),
            format_args!("heap from {} on, ", size(heap_bytes)),
        ),
        (
            heap_bytes.is_some() && on.heap_dirty_decay.is_some(),
            format_args!("dirty decay {} ms, ", ms(on.heap_dirty_decay)),
        ),
        (
            heap_bytes.is_some() && on.heap_muzzy_decay.is_some(),
            format_args!("muzzy decay {} ms, ", ms(on.heap_muzzy_decay)),
        ),
        (on.munmap, format_args!("munmap=background, ")),
        (on.discard, format_args!("discard=background, ")),
        (on.lock, format_args!("lock=onfault, ")),
        (
            populate_bytes.is_some(),
            format_args!("populate from {} on, ", size(populate_bytes)),
        ),
        (
            pool_bytes.is_some(),
            format_args!("pool of {}, ", size(pool_bytes)),
        ),
        (on.pool_released, format_args!("pool-released, ")),
        (on.exit, format_args!("exit=background, ")),
        (on.sqlite_cache, format_args!("sqlite-cache, ")),
        (on.stats, format_args!("stats, ")),
    ] {
        if is_on {
            line.add(what);
        }
    }
    line.add(format_args!("next allocator {}", next.to_string_lossy()));
    line.end();
    line.write_to(libc::STDERR_FILENO);
}
