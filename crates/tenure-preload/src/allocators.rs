//! The address ranges of the allocators' code.
//!
//! An allocator maps and unmaps memory with its locks held, and tenure's verbs
//! allocate: a verb called from inside an allocator would wait for those locks. The calls
//! of the allocators therefore always go to the [real functions](crate::map::real).

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{c_library, objects, sys};

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

    fn is_empty(&self) -> bool {
        self.end.load(Ordering::Relaxed) == 0
    }

    fn set(&self, range: &Range<usize>) {
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
    }

    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        (start..end).contains(&address)
    }
}

/// The object whose `malloc` the program uses (this library, unless the program has its
/// own), and that of the real allocator.
static CODE_RANGES: [CodeRange; 2] = [const { CodeRange::empty() }; 2];

/// The objects behind this library that have a malloc or free of their own, unless that is the C
/// library, whose other functions allocate for the program: the real allocator, and what stands
/// between it and this library.
static REAL: [CodeRange; 8] = [const { CodeRange::empty() }; 8];

/// Whether the real allocator can tell how large its blocks are. The function for that may be
/// another allocator's, as the C library's where one defines no more than malloc, free, calloc and
/// realloc.
static HAS_SIZES: AtomicBool = AtomicBool::new(false);

/// Finds those objects, after those of the C library.
pub(crate) fn find_real() {
    let here = (&raw const CODE_RANGES).addr();
    let mut slots = REAL.iter();
    let mut is_behind = false;
    objects::find(|object| -> Option<()> {
        let range = object.addresses();
        if range.contains(&here) {
            is_behind = true;
        } else if is_behind
            && let Some(function) = [c"malloc", c"free"]
                .iter()
                .find_map(|it| object.definition(it))
            && !c_library::contains(function)
        {
            slots.next()?.set(&range);
        }
        None
    });
    let object_of = |name| objects::addresses_of(sys::next_symbol(name).addr());
    let has_sizes = object_of(c"realloc") == object_of(c"malloc_usable_size");
    HAS_SIZES.store(has_sizes, Ordering::Relaxed);
}

/// Returns whether [`find_real`] has found an allocator that is not the C library's.
pub(crate) fn has_real() -> bool {
    !REAL[0].is_empty()
}

/// Returns whether a return address lies in the real allocator. Before [`find_real`], and if that
/// is the C library's, none does.
#[inline]
pub(crate) fn is_real(caller: usize) -> bool {
    let mut found = REAL.iter().take_while(|code| !code.is_empty());
    found.any(|code| code.contains(caller))
}

/// Returns whether the real allocator can tell how large its blocks are.
pub(crate) fn has_sizes() -> bool {
    HAS_SIZES.load(Ordering::Relaxed)
}

/// Returns whether a return address lies in an allocator. Before [`find`] none does.
pub(crate) fn contains(caller: usize) -> bool {
    CODE_RANGES.iter().any(|code| code.contains(caller))
}

/// Finds the objects that define these functions. Returns whether both were found.
pub(crate) fn find(functions: [*const c_void; 2]) -> bool {
    CODE_RANGES.iter().zip(functions).all(|(code, function)| {
        let found = objects::addresses_of(function.addr());
        if let Some(range) = &found {
            code.set(range);
        }
        found.is_some()
    })
}

/// Returns the definition of `malloc` that the program uses, and the next one.
pub(crate) fn mallocs() -> [*const c_void; 2] {
    // dlsym could name an entry of the program's own, as for [`own_function`]: all of the program
    // would be an allocator then.
    let in_use = objects::find(|object| object.definition(c"malloc")).unwrap_or(0);
    [
        std::ptr::without_provenance(in_use),
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

/// Functions that know only the blocks of one allocator: jemalloc's, and names that several have.
const SPECIFIC: [&CStr; 14] = [
    c"dallocx",
    c"sdallocx",
    c"rallocx",
    c"xallocx",
    c"sallocx",
    c"malloc_size",
    c"vfree",
    c"reallocf",
    c"reallocarr",
    c"MallocExtension_GetAllocatedSize",
    c"MallocExtension_GetOwnership",
    c"__libc_free",
    c"__libc_cfree",
    c"__libc_realloc",
];

/// The beginnings of the names of tcmalloc's functions and of mimalloc's. Few take no block.
const SPECIFIC_PREFIXES: [&[u8]; 2] = [b"tc_", b"mi_"];

fn is_specific(name: &CStr) -> bool {
    let bytes = name.to_bytes();
    SPECIFIC.contains(&name) || SPECIFIC_PREFIXES.iter().any(|it| bytes.starts_with(it))
}

/// A function of [`is_specific`] that an object uses.
pub(crate) struct SpecificFunction {
    name: &'static CStr,
    /// The path of the object that uses it; empty for the program.
    user: &'static CStr,
}

/// Returns such a function that an object uses, if an allocator has it whose malloc or free the
/// heap would stand in front of: the object may give it a block of malloc. Looks at the objects
/// that the program has started with.
pub(crate) fn specific_function() -> Option<SpecificFunction> {
    let is_allocators = |name: &CStr| {
        objects::find(|object| {
            object.definition(name)?;
            [c"malloc", c"free"]
                .iter()
                .find_map(|it| object.definition(it))
        })
        .is_some()
    };
    objects::find(|object| {
        let name = object.use_of(|name| is_specific(name) && is_allocators(name))?;
        let user = object.path();
        Some(SpecificFunction { name, user })
    })
}

fn object_name(path: &'static CStr) -> std::borrow::Cow<'static, str> {
    match path.is_empty() {
        true => "the program".into(),
        false => path.to_string_lossy(),
    }
}

impl std::fmt::Display for SpecificFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, name) = (object_name(self.user), self.name.to_string_lossy());
        write!(
            f,
            "{user} uses {name}, which knows only its allocator's blocks"
        )
    }
}

impl std::fmt::Display for OwnFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (object, name) = (object_name(self.object), self.name.to_string_lossy());
        write!(f, "{object} has a {name} of its own")
    }
}
