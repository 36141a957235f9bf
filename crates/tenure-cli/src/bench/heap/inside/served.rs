//! What serves malloc here, as far as it tells.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem,
    path::PathBuf,
    ptr,
};

use anyhow::Result;
use procfs::process::{MMapPath, Process};
use tenure::page_size;

use super::{super::job::Served, block::Block};

/// What every allocator takes for large.
const LARGE: usize = 8 << 20;

/// Looks for a library among what is mapped, and asks the allocator what it is.
pub fn tell(library: Option<&str>) -> Result<Served> {
    Ok(Served {
        library: library.map(mapped).transpose()?.flatten(),
        begins_with_page: Block::zeroed(LARGE)?.bytes().as_ptr().addr() % page_size() == 0,
        version: mimalloc()
            .or_else(tcmalloc)
            .or_else(jemalloc)
            .or_else(glibc),
    })
}

/// Returns the first file mapped whose name has `part` in it.
fn mapped(part: &str) -> Result<Option<PathBuf>> {
    let maps = Process::myself()?.maps()?;
    let files = maps.into_iter().filter_map(|map| match map.pathname {
        MMapPath::Path(path) => Some(path),
        _ => None,
    });
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().contains(part)
    };
    Ok(files.into_iter().find(is_it))
}

fn mimalloc() -> Option<String> {
    let function = symbol(c"mi_version")?;
    // SAFETY: int mi_version(void), in <mimalloc.h>.
    let version = unsafe { mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(function)() };
    let (major, minor, patch) = (version / 100, version / 10 % 10, version % 10);
    Some(format!("{major}.{minor}.{patch}"))
}

fn tcmalloc() -> Option<String> {
    type Version = extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;
    let function = symbol(c"tc_version")?;
    let (mut major, mut minor, mut patch) = (0, 0, ptr::null());
    // SAFETY: const char *tc_version(int *major, int *minor, const char **patch), in
    // <gperftools/tcmalloc.h>; there is room for all three.
    unsafe {
        let version = mem::transmute::<*mut c_void, Version>(function);
        version(&mut major, &mut minor, &mut patch);
    }
    Some(format!("{major}.{minor}"))
}

fn jemalloc() -> Option<String> {
    type Control =
        extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
    let function = symbol(c"mallctl")?;
    let mut version: *const c_char = ptr::null();
    let mut len = size_of_val(&version);
    // SAFETY: int mallctl(const char *, void *, size_t *, void *, size_t), in
    // <jemalloc/jemalloc.h>; "version" is a const char *, for which there is room.
    let answer = unsafe {
        mem::transmute::<*mut c_void, Control>(function)(
            c"version".as_ptr(),
            ptr::from_mut(&mut version).cast(),
            &mut len,
            ptr::null_mut(),
            0,
        )
    };
    (answer == 0).then(|| first_word(version))
}

fn glibc() -> Option<String> {
    let function = symbol(c"gnu_get_libc_version")?;
    // SAFETY: const char *gnu_get_libc_version(void), in <gnu/libc-version.h>.
    let version =
        unsafe { mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(function)() };
    Some(first_word(version))
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string, and RTLD_DEFAULT needs no handle.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Copies what stands before the first separator: the rest tells of the build.
fn first_word(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the callers' functions return strings that are never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let end = text.find(['-', ' ']).unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_found_by_a_part_of_its_name() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(mapped(name).unwrap(), Some(own.clone()));
        assert_eq!(mapped("libno_such_allocator").unwrap(), None);
    }

    #[test]
    fn a_version_ends_before_what_tells_of_the_build() {
        let word = |text: &CStr| first_word(text.as_ptr());
        assert_eq!(word(c"5.3.0-0-g54eaed1d8b56b1aa"), "5.3.0");
        assert_eq!(word(c"gperftools 2.10"), "gperftools");
        assert_eq!(word(c"2.36"), "2.36");
        assert_eq!(first_word(ptr::null()), "");
    }
}
