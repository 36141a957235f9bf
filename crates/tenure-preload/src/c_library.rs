//! The address ranges of the C library's code.
//!
//! When a thread ends or is joined, glibc frees the stacks that it does not keep, and the
//! blocks of their thread-local storage, with a lock held that pthread_create(3) takes. A
//! `free` that it calls must therefore not start a thread.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{objects, sys};

/// The first address of an object, and the one behind its last.
struct CodeRange {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// The C library, the loader, and before glibc 2.34 the library of threads.
static CODE_RANGES: [CodeRange; 3] = [const {
    CodeRange {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; 3];

/// Finds the objects.
pub(crate) fn find() {
    let functions = [c"gnu_get_libc_version", c"__tls_get_addr", c"pthread_join"];
    for (code, function) in CODE_RANGES.iter().zip(functions) {
        if let Some(range) = objects::addresses_of(sys::next_symbol(function).addr()) {
            code.start.store(range.start, Relaxed);
            code.end.store(range.end, Relaxed);
        }
    }
}

/// Returns whether a return address lies in the C library. Before [`find`] none does.
pub(crate) fn contains(caller: usize) -> bool {
    CODE_RANGES
        .iter()
        .any(|code| (code.start.load(Relaxed)..code.end.load(Relaxed)).contains(&caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_contains_its_functions_only() {
        assert!(!contains(libc::getpid as *const () as usize));
        find();
        assert!(contains(libc::getpid as *const () as usize));
        assert!(contains(sys::next_symbol(c"__tls_get_addr").addr()));
        assert!(!contains(find as *const () as usize));
    }
}
