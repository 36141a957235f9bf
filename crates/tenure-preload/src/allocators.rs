//! The address ranges of the allocators' code.
//!
//! An allocator maps and unmaps memory with its locks held, and tenure's verbs
//! allocate: a verb called from inside an allocator would wait for those locks. The calls
//! of the allocators therefore always go to the [real functions](crate::map::real).

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

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
        let found = extent(function);
        if let Some(range) = &found {
            code.start.store(range.start, Ordering::Relaxed);
            code.end.store(range.end, Ordering::Relaxed);
        }
        found.is_some()
    })
}

/// Returns the range of the object that contains this address.
fn extent(address: *const c_void) -> Option<Range<usize>> {
    struct Search {
        address: usize,
        found: Option<Range<usize>>,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes its own data, valid during this call, and
        // `extent`'s `Search`.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: the loader's pointer and count describe one array.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let parts = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let parts = parts.map(|header| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        });
        let whole =
            parts.reduce(|whole, part| whole.start.min(part.start)..whole.end.max(part.end));
        let range = whole.unwrap_or_default();
        if range.contains(&search.address) {
            search.found = Some(range);
            return 1;
        }
        0
    }
    let mut search = Search {
        address: address.addr(),
        found: None,
    };
    // SAFETY: the callback uses only the data that it is passed.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Returns the definition of `malloc` that the program uses, and the next one.
pub(crate) fn mallocs() -> [*const c_void; 2] {
    [
        sys::symbol(c"malloc").cast_const(),
        sys::next_symbol(c"malloc").cast_const(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_of_address_covers_code_and_data() {
        static DATA: AtomicUsize = AtomicUsize::new(1);
        let code = extent(contains as *const c_void).unwrap();
        let data = (&raw const DATA).cast::<c_void>();
        assert_eq!(extent(data), Some(code.clone()));
        let other = extent(libc::getpid as *const c_void).unwrap();
        assert!(other.end <= code.start || code.end <= other.start);
        let on_the_stack = 0_u8;
        assert_eq!(extent((&raw const on_the_stack).cast()), None);
    }
}
