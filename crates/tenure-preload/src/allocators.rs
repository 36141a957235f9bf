//! The address ranges of the allocators' code.
//!
//! An allocator maps and unmaps memory with its locks held, and tenure's verbs
//! allocate: a verb called from inside an allocator would wait for those locks. The calls
//! of the allocators therefore always go to the [real functions](crate::map::real).

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{objects, sys};

/// The first address of an object's code and data, and the one behind the last.
struct CodeRange {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl CodeRange {
    const fn empty() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }
}

/// The object whose `malloc` the program uses (this library, unless the program has its
/// own), and that of the real allocator.
static CODE_RANGES: [CodeRange; 2] = [const { CodeRange::empty() }; 2];

/// Returns whether a return address lies in an allocator. Before [`find`] none does.
pub(crate) fn contains(caller: usize) -> bool {
    CODE_RANGES.iter().any(|code| {
        let start = code.start.load(Ordering::Relaxed);
        let end = code.end.load(Ordering::Relaxed);
        (start..end).contains(&caller)
    })
}

/// Finds the objects that define these functions. Returns whether both were found.
pub(crate) fn find(functions: [*const c_void; 2]) -> bool {
    CODE_RANGES.iter().zip(functions).all(|(code, function)| {
        let found = objects::addresses_of(function.addr());
        if let Some(range) = &found {
            code.start.store(range.start, Ordering::Relaxed);
            code.end.store(range.end, Ordering::Relaxed);
        }
        found.is_some()
    })
}

/// Returns the definition of `malloc` that the program uses, and the next one.
pub(crate) fn mallocs() -> [*const c_void; 2] {
    [
        sys::symbol(c"malloc").cast_const(),
        sys::next_symbol(c"malloc").cast_const(),
    ]
}

/// A function of malloc's family that the program does not use from this library.
pub(crate) struct OwnFunction {
    name: &'static CStr,
    /// The path of the object that defines it; empty for the program.
    object: &'static CStr,
}

/// Returns the first of the functions that the program, or a library ahead of this one, defines
/// itself: each of them must know the blocks of the others.
///
/// The address that the loader gives for a function would not tell: in a program that is not
/// position-independent and takes it, that is the program's own entry, an undefined symbol with
/// a value.
pub(crate) fn own_function() -> Option<OwnFunction> {
    let here = (&raw const CODE_RANGES).addr();
    [c"malloc", c"calloc", c"realloc", c"free"]
        .into_iter()
        .find_map(|name| {
            let (is_ours, object) = objects::find(|object| {
                object.definition(name)?;
                Some((object.addresses().contains(&here), object.path()))
            })?;
            (!is_ours).then_some(OwnFunction { name, object })
        })
}

impl std::fmt::Display for OwnFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.object.is_empty() {
            true => f.write_str("the program")?,
            false => write!(f, "{}", self.object.to_string_lossy())?,
        }
        write!(f, " has a {} of its own", self.name.to_string_lossy())
    }
}
