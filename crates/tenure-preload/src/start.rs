//! What the library does when it is loaded.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use tenure::{LockAll, LockMode, teardown};
use tenure_heap::HeapOptions;
use tenure_options::Options;

use crate::line::{self, Bytes, Line};
use crate::quiet::inside;
use crate::{allocate, allocators, aside, map, next, summary, sys};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs before the program's own code, and behind the constructors of most other
/// libraries: what these have asked for was the next allocator's.
unsafe extern "C" fn start(_: c_int, _: *const *const c_char, environ: *const *const c_char) {
    next::look_up();
    if sys::is_secure() {
        return;
    }
    // SAFETY: so the loader calls constructors.
    let variables = unsafe { Variables::new(environ) };
    let wrong = |row: &tenure_options::OptionRow, value: &[u8]| {
        let value = OsStr::from_bytes(value).display();
        line::say(format_args!(
            "{}={value} is not understood, and left out",
            row.variable
        ));
    };
    let options = Options::read(|name| variables.value_of(name), wrong);
    if options == Options::OFF {
        return;
    }
    // Without it nothing of tenure can work.
    if !aside::has_room() {
        return without("everything", &"there are not enough addresses (RLIMIT_AS)");
    }
    inside(|| turn_on(options));
}

/// The environment as a program finds it when it begins.
struct Variables(*const *const c_char);

impl Variables {
    /// # Safety
    ///
    /// An array of strings that ends with NULL, and stays.
    unsafe fn new(environ: *const *const c_char) -> Self {
        Self(environ)
    }

    fn value_of(&self, name: &str) -> Option<&'static [u8]> {
        let mut next = self.0;
        if next.is_null() {
            return None;
        }
        loop {
            // SAFETY: not past the NULL at the end of the array.
            let entry = unsafe { *next };
            if entry.is_null() {
                return None;
            }
            // SAFETY: a string of the environment.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let value = entry.strip_prefix(name.as_bytes());
            if let Some(value) = value.and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(value);
            }
            // SAFETY: as above.
            next = unsafe { next.add(1) };
        }
    }
}

/// Turns on what is asked for, and says what cannot be had.
fn turn_on(options: Options) {
    let mallocs = allocators::mallocs();
    let [in_use, next] = mallocs;
    let has_own_malloc = in_use != allocate::malloc as *const _;
    let mut on = options;

    // While there is one thread: a fork may come at any moment from then on.
    aside::stay_whole_in_children();
    tenure::prepare();
    if options.stats {
        summary::turn_on();
    }
    // Before the heap reserves its addresses: they are locked as all that comes.
    if options.lock
        && let Err(error) = tenure::lock_all(LockAll::CurrentAndFuture, LockMode::OnFault)
    {
        without("lock=onfault", &error);
        on.lock = false;
    }
    if let Some(threshold_bytes) = options.heap_threshold_bytes
        && let Err(reason) = turn_heap_on(threshold_bytes, has_own_malloc, on.lock)
    {
        without("heap", &reason);
        on.heap_threshold_bytes = None;
    }
    if options.exit
        && let Err(error) = teardown::enable()
    {
        without("exit=background", &error);
        on.exit = false;
    }
    if on.wants_mappings() {
        if allocators::find(mallocs) {
            map::turn_on(&on);
        } else {
            without(
                "what concerns mappings",
                &"the loader does not tell where allocators are",
            );
            on = on.without_mappings();
        }
    }
    if options.verbose {
        let next = sys::object_of(next).map_or(c"?", |(file, _)| file);
        tell(&on, next);
    }
}

fn without(option: &str, reason: &dyn std::fmt::Display) {
    line::say(format_args!("{option} is left out: {reason}"));
}

#[expect(
    clippy::field_reassign_with_default,
    reason = "HeapOptions is non_exhaustive"
)]
fn turn_heap_on(
    threshold_bytes: usize,
    has_own_malloc: bool,
    is_locked: bool,
) -> Result<(), Trouble> {
    if has_own_malloc {
        return Err(Trouble::OwnMalloc);
    }
    // The heap reserves terabytes. With everything locked they would be charged,
    // and be charged still when a program that began as root gives its rights up:
    // no mmap would succeed any more.
    if is_locked && !sys::may_lock_any_amount() {
        return Err(Trouble::Limit);
    }
    let mut options = HeapOptions::default();
    options.threshold_bytes = threshold_bytes;
    tenure_heap::start(options).map_err(Trouble::Heap)?;
    allocate::turn_on();
    Ok(())
}

/// Why there is no heap.
enum Trouble {
    OwnMalloc,
    Limit,
    Heap(tenure::Error),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OwnMalloc => f.write_str("the program has a malloc of its own"),
            Self::Limit => f.write_str(
                "with lock=onfault its terabytes of addresses count against \
                 RLIMIT_MEMLOCK, which is not unlimited (ulimit -l, LimitMEMLOCK=)",
            ),
            Self::Heap(error) => error.fmt(f),
        }
    }
}

/// One line: what is on.
fn tell(on: &Options, next: &CStr) {
    let size = |bytes: Option<usize>| Bytes(bytes.unwrap_or(0) as u64);
    let heap_bytes = on.heap_threshold_bytes;
    let populate_bytes = on.populate_bytes;
    let mut line = Line::new();
    let name = sys::program_name().to_string_lossy();
    line.add(format_args!("tenure: {name} (process {}): ", sys::pid()));
    for (is_on, what) in [
        (
            heap_bytes.is_some(),
            format_args!("heap from {} on, ", size(heap_bytes)),
        ),
        (on.munmap, format_args!("munmap=background, ")),
        (on.discard, format_args!("discard=background, ")),
        (on.lock, format_args!("lock=onfault, ")),
        (
            populate_bytes.is_some(),
            format_args!("populate from {} on, ", size(populate_bytes)),
        ),
        (on.exit, format_args!("exit=background, ")),
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
