//! The allocator that is next in line: the C library's, or one that is loaded
//! between it and us. Looked up at the first call; whoever asks for memory
//! meanwhile (the looking up itself may) gets it from [`aside`]. So does whoever is
//! inside of tenure.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::{aside, line, quiet, sys};

/// A function of the next allocator's.
pub(crate) struct Slot<F> {
    address: AtomicPtr<()>,
    function: PhantomData<F>,
}

impl<F: Copy> Slot<F> {
    /// Must be given an address of an `F`.
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
        // SAFETY: the slot was made for the type of the function whose address it
        // has: the first one, or what `look_up` found by that name.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type AllocateTwo = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Reallocate = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;

pub(crate) struct Next {
    pub(crate) malloc: Slot<Allocate>,
    pub(crate) calloc: Slot<AllocateTwo>,
    pub(crate) realloc: Slot<Reallocate>,
    pub(crate) free: Slot<Free>,
    pub(crate) posix_memalign: Slot<PosixMemalign>,
    pub(crate) aligned_alloc: Slot<AllocateTwo>,
    pub(crate) memalign: Slot<AllocateTwo>,
    pub(crate) malloc_usable_size: Slot<UsableSize>,
}

/// Each function is at first one of [`first`], which looks up the others.
pub(crate) static NEXT: Next = Next {
    malloc: Slot::new(first::malloc as *mut ()),
    calloc: Slot::new(first::calloc as *mut ()),
    realloc: Slot::new(first::realloc as *mut ()),
    free: Slot::new(first::free as *mut ()),
    posix_memalign: Slot::new(first::posix_memalign as *mut ()),
    aligned_alloc: Slot::new(first::aligned_alloc as *mut ()),
    memalign: Slot::new(first::aligned_alloc as *mut ()),
    malloc_usable_size: Slot::new(first::malloc_usable_size as *mut ()),
};

/// What is in [`NEXT`] while nobody is inside of tenure.
static MALLOC: Slot<Allocate> = Slot::new(first::malloc as *mut ());
static CALLOC: Slot<AllocateTwo> = Slot::new(first::calloc as *mut ());

/// How many threads are inside of tenure.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Has every thread see, before it asks for memory, whether it is inside of tenure:
/// for as long as one is. The others pay for that only then.
pub(crate) fn be_careful() {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    set([careful::malloc as *mut (), careful::calloc as *mut ()]);
}

/// The thread is outside again.
pub(crate) fn be_careless() {
    if INSIDE.fetch_sub(1, Ordering::SeqCst) > 1 {
        return;
    }
    let known = [&MALLOC.address, &CALLOC.address];
    set(known.map(|slot| slot.load(Ordering::Relaxed)));
    // Who came in meanwhile may have been careful before, in vain.
    if INSIDE.load(Ordering::SeqCst) > 0 {
        set([careful::malloc as *mut (), careful::calloc as *mut ()]);
    }
}

fn set([malloc, calloc]: [*mut (); 2]) {
    NEXT.malloc.address.store(malloc, Ordering::SeqCst);
    NEXT.calloc.address.store(calloc, Ordering::SeqCst);
}

const UNKNOWN: u8 = 0;
const LOOKING: u8 = 1;
const KNOWN: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Looks the functions up, if that has not been done. Answers whether they are
/// known: not while this or another thread is looking. (To wait for the other one
/// could take for ever: this one may hold the loader's lock.)
pub(crate) fn look_up() -> bool {
    let found = STATE.compare_exchange(UNKNOWN, LOOKING, Ordering::Acquire, Ordering::Acquire);
    match found {
        Err(state) => state == KNOWN,
        Ok(_) => {
            for (slot, name) in [
                (&MALLOC.address, c"malloc"),
                (&CALLOC.address, c"calloc"),
                (&NEXT.realloc.address, c"realloc"),
                (&NEXT.posix_memalign.address, c"posix_memalign"),
                (&NEXT.aligned_alloc.address, c"aligned_alloc"),
                (&NEXT.memalign.address, c"memalign"),
                (&NEXT.malloc_usable_size.address, c"malloc_usable_size"),
                // Last: what is allocated by one must not be freed by none.
                (&NEXT.free.address, c"free"),
            ] {
                slot.store(find(name), Ordering::Relaxed);
            }
            STATE.store(KNOWN, Ordering::Release);
            be_careful();
            be_careless();
            true
        }
    }
}

fn find(name: &CStr) -> *mut () {
    let address = sys::next_symbol(name);
    if address.is_null() {
        // Only where no C library is loaded behind us.
        line::say(format_args!(
            "there is no {} behind this library",
            name.to_string_lossy()
        ));
        sys::abort();
    }
    address.cast()
}

fn zeros_aside(count: usize, size: usize) -> *mut c_void {
    let bytes = count.saturating_mul(size);
    let block = aside::allocate(bytes, 1);
    if !block.is_null() {
        // SAFETY: just taken, so long.
        unsafe { block.write_bytes(0, bytes) };
    }
    block.cast()
}

/// What they are while a thread is inside of tenure, of which this may be the one.
mod careful {
    use super::*;

    pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
        if quiet::is_inside() {
            return aside::allocate(size, 1).cast();
        }
        // SAFETY: handed on to the caller.
        unsafe { MALLOC.get()(size) }
    }

    pub(super) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
        if quiet::is_inside() {
            return zeros_aside(count, size);
        }
        // SAFETY: handed on to the caller.
        unsafe { CALLOC.get()(count, size) }
    }
}

/// What the functions are until the next allocator's are known.
mod first {
    use super::*;

    pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
        if look_up() {
            // SAFETY: handed on to the caller, as below.
            return unsafe { MALLOC.get()(size) };
        }
        aside::allocate(size, 1).cast()
    }

    pub(super) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
        if look_up() {
            // SAFETY: as above.
            return unsafe { CALLOC.get()(count, size) };
        }
        zeros_aside(count, size)
    }

    /// Blocks taken aside do not get here.
    pub(super) unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
        if look_up() {
            // SAFETY: as above.
            return unsafe { NEXT.realloc.get()(ptr, size) };
        }
        if ptr.is_null() {
            return aside::allocate(size, 1).cast();
        }
        std::ptr::null_mut()
    }

    /// Blocks taken aside do not get here. A block of the next allocator's, while it
    /// is not known, is one that somebody took from it behind our back: it stays.
    pub(super) unsafe extern "C" fn free(ptr: *mut c_void) {
        if look_up() {
            // SAFETY: as above.
            unsafe { NEXT.free.get()(ptr) }
        }
    }

    pub(super) unsafe extern "C" fn posix_memalign(
        out: *mut *mut c_void,
        align: usize,
        size: usize,
    ) -> c_int {
        if look_up() {
            // SAFETY: as above.
            return unsafe { NEXT.posix_memalign.get()(out, align, size) };
        }
        let block = aside::allocate(size, align);
        if block.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: the caller's.
        unsafe { *out = block.cast() };
        0
    }

    /// memalign is the same.
    pub(super) unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
        if look_up() {
            // SAFETY: as above.
            return unsafe { NEXT.aligned_alloc.get()(align, size) };
        }
        aside::allocate(size, align).cast()
    }

    pub(super) unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
        if look_up() {
            // SAFETY: as above.
            return unsafe { NEXT.malloc_usable_size.get()(ptr) };
        }
        0
    }
}
