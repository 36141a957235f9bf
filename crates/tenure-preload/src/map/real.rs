//! The real mmap, munmap, mremap and madvise: those of the next library that defines them,
//! which may be another preloaded one that counts or traces. Until they are resolved, and
//! where there are none, the system calls take their place.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::reentrancy::preserve_errno;
use crate::{real, sys};

/// A function of the next library that defines it.
struct RealFunction<F> {
    name: &'static CStr,
    /// Null until it is resolved, and where there is none.
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> RealFunction<F> {
    /// # Safety
    ///
    /// Every library must define a function of this name as an `F`.
    const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
            function: PhantomData,
        }
    }

    fn resolve(&self) {
        let address = sys::next_symbol(self.name);
        self.address.store(address, Ordering::Relaxed);
    }

    /// Returns the function, once it is resolved.
    fn known(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        // SAFETY: the address is not null, and so that of the function with this name, which
        // is an `F`, as the caller of `new` ensures.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// Returns the function. `None` where there is none, and while it is being resolved:
    /// dlsym itself, or an allocator behind this library, may map memory then.
    fn get(&self) -> Option<F> {
        self.known().or_else(|| {
            preserve_errno(real::resolve);
            self.known()
        })
    }
}

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void;

// SAFETY: the names and types are those of `<sys/mman.h>`; all offsets have 64 bits here.
static MMAP: RealFunction<Mmap> = unsafe { RealFunction::new(c"mmap") };
// SAFETY: as above.
static MMAP64: RealFunction<Mmap> = unsafe { RealFunction::new(c"mmap64") };
// SAFETY: as above.
static MUNMAP: RealFunction<Munmap> = unsafe { RealFunction::new(c"munmap") };
// SAFETY: as above.
static MADVISE: RealFunction<Madvise> = unsafe { RealFunction::new(c"madvise") };
// SAFETY: as above.
static MREMAP: RealFunction<Mremap> = unsafe { RealFunction::new(c"mremap") };

/// Resolves the functions. Only [`real::resolve`] calls it, once.
pub(crate) fn resolve() {
    MMAP.resolve();
    MMAP64.resolve();
    MUNMAP.resolve();
    MADVISE.resolve();
    MREMAP.resolve();
}

/// Which of the two names of mmap the program has called.
#[derive(Clone, Copy)]
pub(super) enum MmapName {
    Mmap,
    Mmap64,
}

/// # Safety
///
/// The conditions are those of `mmap(2)`.
pub(super) unsafe fn mmap(
    name: MmapName,
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let function = match name {
        MmapName::Mmap => &MMAP,
        MmapName::Mmap64 => &MMAP64,
    };
    // SAFETY: the caller keeps the conditions of `mmap(2)`.
    unsafe {
        match function.get() {
            Some(mmap) => mmap(addr, len, prot, flags, fd, offset),
            None => sys::mmap(addr, len, prot, flags, fd, offset),
        }
    }
}

/// # Safety
///
/// The conditions are those of `munmap(2)`.
pub(super) unsafe fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller keeps the conditions of `munmap(2)`.
    unsafe {
        match MUNMAP.get() {
            Some(munmap) => munmap(addr, len),
            None => sys::munmap(addr, len),
        }
    }
}

/// # Safety
///
/// The conditions are those of `madvise(2)`.
pub(super) unsafe fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the conditions of `madvise(2)`.
    unsafe {
        match MADVISE.get() {
            Some(madvise) => madvise(addr, len, advice),
            None => sys::madvise(addr, len, advice),
        }
    }
}

/// Passes `new` on also where the program gave none; it is then not read.
///
/// # Safety
///
/// The conditions are those of `mremap(2)`.
pub(super) unsafe fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller keeps the conditions of `mremap(2)`.
    unsafe {
        match MREMAP.get() {
            Some(mremap) => mremap(old, old_len, new_len, flags, new),
            None => sys::mremap(old, old_len, new_len, flags, new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_that_no_library_defines_is_none() {
        // SAFETY: no library defines the name.
        let absent = unsafe { RealFunction::<Munmap>::new(c"tenure_no_such_function") };
        absent.resolve();
        assert!(absent.get().is_none());
        MUNMAP.resolve();
        assert!(MUNMAP.get().is_some());
    }
}
