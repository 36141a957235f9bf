//! A small heap of the shared library's own, in front of the program's: for tenure itself.
//!
//! glibc gives each thread that allocates 64 MiB of addresses, so tenure's threads would take
//! them from a program that has few (RLIMIT_AS). And a program that has used up the last ones
//! goes on without memory, while Rust ends it when an allocation of tenure's fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;
use tenure::HeapLock;

/// Less than a huge page, of which the kernel would back the whole.
const CAPACITY_BYTES: usize = 1 << 20;

/// Larger blocks are the program's allocator's, while it has memory.
const MAX_PREFERRED_BYTES: usize = 32 << 10;

/// The memory, which the kernel backs as it is used.
struct Memory(UnsafeCell<[u8; CAPACITY_BYTES]>);

// SAFETY: only the heap uses it, which is locked.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; CAPACITY_BYTES]));

static HEAP: HeapLock<Dlmalloc<Source>> = HeapLock::new(Dlmalloc::new_with_allocator(Source));

/// Gives the heap its memory.
struct Source;

static IS_GIVEN: AtomicBool = AtomicBool::new(false);

// SAFETY: `alloc` returns the memory once: another call is for more than is left of it, and the
// heap keeps all it has.
unsafe impl dlmalloc::Allocator for Source {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match size <= CAPACITY_BYTES && !IS_GIVEN.swap(true, Ordering::Relaxed) {
            true => (MEMORY.0.get().cast(), CAPACITY_BYTES, 0),
            false => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        tenure::page_size()
    }
}

/// Runs before tenure's own entry in `.init_array`, which has no number: the heap's handlers
/// have to be registered first.
#[used]
#[unsafe(link_section = ".init_array.00200")]
static AT_LOAD: extern "C" fn() = register_atfork;

extern "C" fn register_atfork() {
    extern "C" fn prepare() {
        HEAP.hold();
    }
    extern "C" fn after() {
        // SAFETY: `prepare` has run before, in this thread or the one that it is a copy of.
        unsafe { HEAP.let_go() };
    }
    // SAFETY: this library is never unloaded. The registration fails only without memory,
    // as the library is loaded, where nothing can be done about it.
    unsafe { libc::pthread_atfork(Some(prepare), Some(after), Some(after)) };
}

/// The global allocator of the Rust code in this library.
struct PrivateAllocator;

#[global_allocator]
static PRIVATE_ALLOCATOR: PrivateAllocator = PrivateAllocator;

fn owns(block: *mut u8) -> bool {
    block.addr().wrapping_sub(MEMORY.0.get().addr()) < CAPACITY_BYTES
}

type Own = unsafe fn(&mut Dlmalloc<Source>, usize, usize) -> *mut u8;
type OfProgram = unsafe fn(&System, Layout) -> *mut u8;

/// Allocates a block with one function, and with the other where that has no memory.
///
/// # Safety
///
/// The layout is not empty.
unsafe fn allocate(layout: Layout, own: Own, of_program: OfProgram) -> *mut u8 {
    // SAFETY: the layout is not empty, as the caller ensures, and the source of memory allocates
    // nothing.
    let own = || unsafe { HEAP.with(|heap| own(heap, layout.size(), layout.align())) };
    // SAFETY: as above.
    let of_program = || unsafe { of_program(&System, layout) };
    let (block, other): (_, &dyn Fn() -> *mut u8) = match layout.size() <= MAX_PREFERRED_BYTES {
        true => (own(), &of_program),
        false => (of_program(), &own),
    };
    match block.is_null() {
        true => other(),
        false => block,
    }
}

// SAFETY: blocks have the requested size and alignment, and each is allocated once.
unsafe impl GlobalAlloc for PrivateAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { allocate(layout, Dlmalloc::malloc, GlobalAlloc::alloc) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { allocate(layout, Dlmalloc::calloc, GlobalAlloc::alloc_zeroed) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match owns(block) {
            // SAFETY: the caller frees a live block, which the heap has allocated; its source of
            // memory allocates nothing.
            true => unsafe { HEAP.with(|heap| heap.free(block, layout.size(), layout.align())) },
            // SAFETY: the caller frees a live block, which the program's allocator has allocated.
            false => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !owns(block) && new_size > MAX_PREFERRED_BYTES {
            // SAFETY: the caller's contract; a block of the program's allocator.
            let new = unsafe { System.realloc(block, layout, new_size) };
            if !new.is_null() {
                return new;
            }
        }
        // SAFETY: the alignment is one, and the size is not too large for it (the caller's
        // contract).
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the caller's contract: the size is not zero.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: two live blocks of these sizes; the caller gives the old one up.
            unsafe {
                copy_nonoverlapping(block, new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}
