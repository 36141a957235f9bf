//! Where the code of the allocators lies.
//!
//! An allocator maps and unmaps memory with its locks held. Tenure's verbs allocate;
//! called from inside an allocator they would wait for those locks. So what the
//! allocators, and this library, ask of the kernel they get from the kernel.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

/// The first byte of an object's code and data, and the one behind them.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Place {
    const fn nowhere() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }
}

/// The allocator that the program uses (this library, unless it has its own), and
/// the one next in line.
static PLACES: [Place; 2] = [const { Place::nowhere() }; 2];

/// Whether a return address lies in an allocator. Before [`find`] none does.
pub(crate) fn contain(caller: usize) -> bool {
    PLACES.iter().any(|place| {
        let start = place.start.load(Ordering::Relaxed);
        let end = place.end.load(Ordering::Relaxed);
        (start..end).contains(&caller)
    })
}

/// Finds where the objects are that the functions come from. Answers whether both
/// were found.
pub(crate) fn find(functions: [*const c_void; 2]) -> bool {
    PLACES.iter().zip(functions).all(|(place, function)| {
        let found = extent(function);
        if let Some(range) = &found {
            place.start.store(range.start, Ordering::Relaxed);
            place.end.store(range.end, Ordering::Relaxed);
        }
        found.is_some()
    })
}

/// Where the object lies that has this address.
fn extent(address: *const c_void) -> Option<Range<usize>> {
    struct Search {
        address: usize,
        found: Option<Range<usize>>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's own, during this call; and what `extent` passes.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: as the loader says.
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
    // SAFETY: the function keeps to what it is given.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// The definitions of `malloc` that the program uses and that is next in line.
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
    fn the_extent_of_an_object_has_its_code_and_data() {
        static DATA: AtomicUsize = AtomicUsize::new(1);
        let code = extent(contain as *const c_void).unwrap();
        let data = (&raw const DATA).cast::<c_void>();
        assert_eq!(extent(data), Some(code.clone()));
        let other = extent(libc::getpid as *const c_void).unwrap();
        assert!(other.end <= code.start || code.end <= other.start);
        let on_the_stack = 0_u8;
        assert_eq!(extent((&raw const on_the_stack).cast()), None);
    }
}
