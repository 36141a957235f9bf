//! The real allocator: the C library's, or one that is loaded between it and this
//! library. The first call resolves its functions with dlsym; requests that arrive
//! meanwhile (dlsym may make some itself), and those of threads inside tenure, are
//! served by the [private heap](private_heap).

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::{allocate, line, map, private_heap, reentrancy, sys};

/// A function of the real allocator.
pub(crate) struct FunctionSlot<F> {
    address: AtomicPtr<()>,
    function: PhantomData<F>,
}

impl<F: Copy> FunctionSlot<F> {
    /// The address must be that of an `F`.
    const fn new(first: *mut ()) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
        Self {
            address: AtomicPtr::new(first),
            function: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> F {
        let address = self.address.load(Ordering::Relaxed);
        // SAFETY: the address is that of an `F`: the one given to `new`, or the one
        // that `resolve` found under the function's name.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

type MallocFn = unsafe extern "C" fn(usize) -> *mut c_void;
type CallocFn = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type ReallocFn = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type FreeFn = unsafe extern "C" fn(*mut c_void);
type PosixMemalignFn = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type UsableSizeFn = unsafe extern "C" fn(*mut c_void) -> usize;

pub(crate) struct RealFunctions {
    pub(crate) malloc: FunctionSlot<MallocFn>,
    pub(crate) calloc: FunctionSlot<CallocFn>,
    pub(crate) realloc: FunctionSlot<ReallocFn>,
    pub(crate) free: FunctionSlot<FreeFn>,
    pub(crate) posix_memalign: FunctionSlot<PosixMemalignFn>,
    pub(crate) aligned_alloc: FunctionSlot<CallocFn>,
    pub(crate) memalign: FunctionSlot<CallocFn>,
    pub(crate) malloc_usable_size: FunctionSlot<UsableSizeFn>,
}

/// Each function is at first one of [`unresolved`], which resolves all of them.
pub(crate) static REAL: RealFunctions = RealFunctions {
    malloc: FunctionSlot::new(unresolved::malloc as *mut ()),
    calloc: FunctionSlot::new(unresolved::calloc as *mut ()),
    realloc: FunctionSlot::new(unresolved::realloc as *mut ()),
    free: FunctionSlot::new(unresolved::free as *mut ()),
    posix_memalign: FunctionSlot::new(unresolved::posix_memalign as *mut ()),
    aligned_alloc: FunctionSlot::new(unresolved::aligned_alloc as *mut ()),
    memalign: FunctionSlot::new(unresolved::aligned_alloc as *mut ()),
    malloc_usable_size: FunctionSlot::new(unresolved::malloc_usable_size as *mut ()),
};

/// The entries of [`REAL`] while no thread is inside tenure.
static MALLOC: FunctionSlot<MallocFn> = FunctionSlot::new(unresolved::malloc as *mut ());
static CALLOC: FunctionSlot<CallocFn> = FunctionSlot::new(unresolved::calloc as *mut ());

/// The number of threads inside tenure.
static INSIDE_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Has every allocation check whether its thread is inside tenure, while any thread is.
/// Without such a thread allocations do not pay for the check.
pub(crate) fn enable_checks() {
    INSIDE_THREADS.fetch_add(1, Ordering::SeqCst);
    set([checked::malloc as *mut (), checked::calloc as *mut ()]);
}

/// Ends one thread's need for checks.
pub(crate) fn disable_checks() {
    if INSIDE_THREADS.fetch_sub(1, Ordering::SeqCst) > 1 {
        return;
    }
    let known = [&MALLOC.address, &CALLOC.address];
    set(known.map(|slot| slot.load(Ordering::Relaxed)));
    // A thread that entered meanwhile may have enabled its checks before they were
    // removed.
    if INSIDE_THREADS.load(Ordering::SeqCst) > 0 {
        set([checked::malloc as *mut (), checked::calloc as *mut ()]);
    }
}

fn set([malloc, calloc]: [*mut (); 2]) {
    allocate::set_checks(malloc == checked::malloc as *mut ());
    REAL.malloc.address.store(malloc, Ordering::SeqCst);
    REAL.calloc.address.store(calloc, Ordering::SeqCst);
}

const UNRESOLVED: u8 = 0;
const RESOLVING: u8 = 1;
const RESOLVED: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNRESOLVED);

/// Resolves the functions, and those that [`map`] calls, unless that has been done. Returns whether they are
/// resolved, which is false while this or another thread is resolving them. It does not
/// wait for the other thread, because this one may hold the loader's lock.
pub(crate) fn resolve() -> bool {
    let found = STATE.compare_exchange(UNRESOLVED, RESOLVING, Ordering::Acquire, Ordering::Acquire);
    match found {
        Err(state) => state == RESOLVED,
        Ok(_) => {
            for (slot, name) in [
                (&MALLOC.address, c"malloc"),
                (&CALLOC.address, c"calloc"),
                (&REAL.realloc.address, c"realloc"),
                (&REAL.posix_memalign.address, c"posix_memalign"),
                (&REAL.aligned_alloc.address, c"aligned_alloc"),
                (&REAL.memalign.address, c"memalign"),
                (&REAL.malloc_usable_size.address, c"malloc_usable_size"),
                // Last: a block of the real allocator must not be freed by the
                // unresolved `free`.
                (&REAL.free.address, c"free"),
            ] {
                slot.store(find(name), Ordering::Relaxed);
            }
            map::real::resolve();
            STATE.store(RESOLVED, Ordering::Release);
            enable_checks();
            disable_checks();
            true
        }
    }
}

fn find(name: &CStr) -> *mut () {
    let address = sys::next_symbol(name);
    if address.is_null() {
        // This happens only without a C library behind this one.
        line::print(format_args!(
            "there is no {} behind this library",
            name.to_string_lossy()
        ));
        sys::abort();
    }
    address.cast()
}

fn private_calloc(count: usize, size: usize) -> *mut c_void {
    let bytes = count.saturating_mul(size);
    let block = private_heap::allocate(bytes, 1);
    if !block.is_null() {
        // SAFETY: just allocated with this size.
        unsafe { block.write_bytes(0, bytes) };
    }
    block.cast()
}

/// The functions while a thread, perhaps this one, is inside tenure.
mod checked {
    use super::*;

    pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
        if reentrancy::is_inside_tenure() {
            return private_heap::allocate(size, 1).cast();
        }
        // SAFETY: `malloc` has no preconditions.
        unsafe { MALLOC.get()(size) }
    }

    pub(super) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
        if reentrancy::is_inside_tenure() {
            return private_calloc(count, size);
        }
        // SAFETY: `calloc` has no preconditions.
        unsafe { CALLOC.get()(count, size) }
    }
}

/// The functions until the real allocator's are resolved.
mod unresolved {
    use super::*;

    pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
        if resolve() {
            // SAFETY: `malloc` has no preconditions.
            return unsafe { MALLOC.get()(size) };
        }
        private_heap::allocate(size, 1).cast()
    }

    pub(super) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
        if resolve() {
            // SAFETY: `calloc` has no preconditions.
            return unsafe { CALLOC.get()(count, size) };
        }
        private_calloc(count, size)
    }

    /// Blocks of the private heap do not get here.
    pub(super) unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
        if resolve() {
            // SAFETY: the conditions are those of the function of the same name.
            return unsafe { REAL.realloc.get()(ptr, size) };
        }
        if ptr.is_null() {
            return private_heap::allocate(size, 1).cast();
        }
        std::ptr::null_mut()
    }

    /// Blocks of the private heap do not get here. A block of the real allocator that
    /// arrives before it is resolved was allocated past this library, and is leaked.
    pub(super) unsafe extern "C" fn free(ptr: *mut c_void) {
        if resolve() {
            // SAFETY: the conditions are those of the function of the same name.
            unsafe { REAL.free.get()(ptr) }
        }
    }

    pub(super) unsafe extern "C" fn posix_memalign(
        out: *mut *mut c_void,
        align: usize,
        size: usize,
    ) -> c_int {
        if resolve() {
            // SAFETY: the conditions are those of the function of the same name.
            return unsafe { REAL.posix_memalign.get()(out, align, size) };
        }
        let block = private_heap::allocate(size, align);
        if block.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: `out` is valid for a pointer, as `posix_memalign` demands.
        unsafe { *out = block.cast() };
        0
    }

    /// Serves `memalign` as well.
    pub(super) unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
        if resolve() {
            // SAFETY: the function has no preconditions.
            return unsafe { REAL.aligned_alloc.get()(align, size) };
        }
        private_heap::allocate(size, align).cast()
    }

    pub(super) unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
        if resolve() {
            // SAFETY: the conditions are those of the function of the same name.
            return unsafe { REAL.malloc_usable_size.get()(ptr) };
        }
        0
    }
}
