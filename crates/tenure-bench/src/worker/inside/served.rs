//! The allocator that serves malloc in this process, as far as it tells.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::path::Path;
use std::{env, ptr};

use anyhow::Result;
use procfs::process::{MMapPath, Process};
use tenure::page_size;

use super::{super::job::Served, block::Block};

/// A size that every allocator takes for large.
const LARGE: usize = 8 << 20;

/// Looks for the preloaded library, if any, and asks the allocator for its version.
pub fn tell() -> Result<Served> {
    let library = env::var_os("LD_PRELOAD").unwrap_or_default();
    let library = Path::new(&library).file_name().unwrap_or_default();
    let version = mimalloc().or_else(tcmalloc);
    Ok(Served {
        is_loaded: is_mapped(&library.to_string_lossy())?,
        begins_with_page: Block::zeroed(LARGE)?.bytes().as_ptr().addr() % page_size() == 0,
        version: version.or_else(jemalloc).or_else(glibc),
    })
}

/// Looks for a file whose path contains `part`, among those that are mapped.
pub fn is_mapped(part: &str) -> Result<bool> {
    let mut maps = Process::myself()?.maps()?.into_iter();
    Ok(maps.any(|map| match map.pathname {
        MMapPath::Path(path) => path.to_string_lossy().contains(part),
        _ => false,
    }))
}

fn mimalloc() -> Option<String> {
    // SAFETY: int mi_version(void), in <mimalloc.h>.
    let version = unsafe { symbol::<extern "C" fn() -> c_int>(c"mi_version") }?();
    Some(mimalloc_version(version))
}

/// Spells a number with a digit each for the minor version and the patch, as mimalloc had it
/// up to 2.2, or with two.
pub fn mimalloc_version(version: c_int) -> String {
    let base = if version < 10_000 { 10 } else { 100 };
    let (major, minor) = (version / (base * base), version / base % base);
    format!("{major}.{minor}.{}", version % base)
}

fn tcmalloc() -> Option<String> {
    type Version = extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;
    let (mut major, mut minor, mut patch) = (0, 0, ptr::null());
    // SAFETY: const char *tc_version(int *major, int *minor, const char **patch), in
    // <gperftools/tcmalloc.h>.
    unsafe { symbol::<Version>(c"tc_version") }?(&mut major, &mut minor, &mut patch);
    Some(format!("{major}.{minor}"))
}

fn jemalloc() -> Option<String> {
    type Control =
        extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
    // SAFETY: int mallctl(const char *, void *, size_t *, void *, size_t), in
    // <jemalloc/jemalloc.h>.
    let control = unsafe { symbol::<Control>(c"mallctl") }?;
    let mut version: *const c_char = ptr::null();
    let (mut len, name) = (size_of_val(&version), c"version".as_ptr());
    let old = ptr::from_mut(&mut version).cast();
    (control(name, old, &mut len, ptr::null_mut(), 0) == 0).then(|| first_word(version))
}

fn glibc() -> Option<String> {
    type Version = extern "C" fn() -> *const c_char;
    // SAFETY: const char *gnu_get_libc_version(void), in <gnu/libc-version.h>.
    let version = unsafe { symbol::<Version>(c"gnu_get_libc_version") }?;
    Some(first_word(version()))
}

/// Looks for a function.
///
/// # Safety
/// - `F` is the type of a pointer to the function of that name.
unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: the name is a string, and RTLD_DEFAULT needs no handle.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller knows the type.
    (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
}

/// Copies the text up to the first separator: the rest tells of the build.
pub fn first_word(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: jemalloc and glibc return strings that are never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let end = text.find(['-', ' ']).unwrap_or(text.len());
    text[..end].to_owned()
}
