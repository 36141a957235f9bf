//! cache: values that are kept for as long as there is memory.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use tenure::volatile::Priority;
use tenure::{CacheOptions, CacheStats, Pinned, SharedCache, SharedValue, VolatileCache};

use crate::answer::{
    Answer, BAD_POINTER, Errno, INVALID, WithSize, answer, answer_without_memory, read_options,
};

/// The longest key, in bytes.
pub const TENURE_CACHE_MAX_KEY: usize = 65536;

/// A cache, made by `tenure_cache_new()` or `tenure_cache_open_shared()`.
pub struct tenure_cache(Cache);

enum Cache {
    Own(VolatileCache<Box<[u8]>>),
    Shared(SharedCache),
}

/// The options of a cache. Set all of it to zeros, then `size`, then the fields to change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_cache_options {
    /// `sizeof(struct tenure_cache_options)` as the program was built with it.
    pub size: usize,
    /// How much memory the values take at most, in bytes. 0 is the default: as much as
    /// there is memory for.
    pub max_bytes: usize,
}

/// A value that `tenure_cache_get()` has found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_cache_value {
    /// The bytes, which do not change, and are valid until `tenure_cache_unpin()`.
    pub data: *const c_void,
    /// Their number.
    pub len: usize,
    /// For `tenure_cache_unpin()`; NULL if there is no value.
    pub pin: *mut c_void,
}

/// The work of a cache, and its size. New fields come last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_cache_stats {
    /// Look-ups that found their value.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Values inserted, replacements included.
    pub insertions: u64,
    /// Values that the cache itself has given up to insert others.
    pub evictions: u64,
    /// Values of which the kernel or tenure has purged pages, as far as the cache has
    /// noticed.
    pub purged: u64,
    /// Values in the cache.
    pub values: u64,
    /// The memory of the values in the cache, in bytes of whole pages.
    pub bytes: u64,
    /// Values that the cache has not taken, because there was no memory for them.
    pub refused: u64,
}

/// Makes an empty cache, which keeps values for as long as there is memory: it evicts and
/// purges them with `userfaultfd()` and `madvise(MADV_FREE)` when memory is short.
///
/// `*out` receives the cache, for `tenure_cache_close()`; `out` must not be NULL. `options`
/// may be NULL for all defaults; tenure does not use it after the call. The cache takes no
/// memory for values before the first insertion.
///
/// Any number of threads may use the cache at once. Of several values the one of lower
/// priority is given up first, and among equals one that was not found lately.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `out` is NULL. Correct the call.
/// * `-EINVAL`: `options->size` is smaller than the structure. Set it to `sizeof`.
/// * `-E2BIG`: `options` has a field that this version of tenure does not know, and it is
///   not zero. Set it to zero.
///
/// # Caveats
///
/// In a child after `fork()` the cache is empty, and keeps nothing: the child makes its own.
/// Values that were pinned at the fork can still be read there.
///
/// # See also
///
/// tenure_cache_insert(3), tenure_cache_get(3), tenure_cache_close(3), tenure(7)
///
/// # Safety
///
/// `out` is NULL or points to a pointer, and `options` is NULL or points to
/// `options->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_new(
    out: *mut *mut tenure_cache,
    options: *const tenure_cache_options,
) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: handed on to the caller.
        let options = unsafe { chosen_options(options) }?;
        let cache = Cache::Own(VolatileCache::with_options(options));
        // SAFETY: not NULL, so it points to a pointer.
        unsafe { out.write(Box::into_raw(Box::new(tenure_cache(cache)))) };
        Ok(0)
    })
}

/// Opens the cache of a name, or makes one: what one process has inserted, all processes of
/// the user find. It is a file in `/dev/shm`, made with `open(O_TMPFILE)` and `linkat()` and of
/// mode 0600.
///
/// `*out` receives the cache, for `tenure_cache_close()`; `out` must not be NULL. `name` has 1
/// to 200 bytes, and no slash. `options` may be NULL for all defaults; `max_bytes` is the limit
/// for insertions of this process. tenure uses neither after the call.
///
/// The functions of a cache do what they do for one of `tenure_cache_new()`, with these
/// differences. `tenure_cache_get()` copies the value, with `malloc()`: `data` may be at any
/// address, and a pinned value is in the way of nobody. Of small values (2 KiB) that it finds
/// repeatedly a process keeps up to 4096 copies (8 MiB) until memory is short. Each value takes
/// whole pages of shared memory, with its key. Under memory pressure any of the processes gives values up, those of
/// the lowest priority first, with `fallocate(FALLOC_FL_PUNCH_HOLE)`. Of
/// `tenure_cache_stats()`, hits, misses, insertions and refused are those of this `cache`, and
/// the others are of all processes.
///
/// The cache stays when the last process has closed it, until the machine stops or
/// `tenure cache drop` removes the name. A value that a process was inserting when it was
/// killed is dropped.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `out` or `name` is NULL. Correct the call.
/// * `-EINVAL`: `name` is no name, or is not UTF-8; or `options->size` is smaller than the
///   structure. Correct the call.
/// * `-E2BIG`: `options` has a field that this version of tenure does not know, and it is
///   not zero. Set it to zero.
/// * `-EACCES`: The file belongs to another user, or others may open it. Choose another name.
/// * `-ELOOP`: The file is a symbolic link. Remove it.
/// * `-EPROTO`: The file is no cache, of another version of tenure, truncated or corrupt. Remove
///   it, with `tenure cache drop`.
/// * `-EUSERS`: 48 processes have opened it. Close it in one of them.
/// * `-EFBIG`: RLIMIT_FSIZE forbids the file, whose length is that of all places for values,
///   though it takes memory for contents only. Raise the limit.
/// * `-ENOSPC`, `-ENOMEM`: `/dev/shm` is full, or there is no memory for the table. Free some.
///
/// # Caveats
///
/// A child after `fork()` uses the cache as any other process does. A process that truncates
/// the file is met with `-EPROTO`, unless it does so in the middle of a call, which then is
/// SIGBUS.
///
/// # See also
///
/// tenure_cache_new(3), tenure_cache_get(3), tenure_cache_insert(3), tenure-cache(1), tenure(7)
///
/// # Safety
///
/// `out` is NULL or points to a pointer, `name` is NULL or a string, and `options` is NULL or
/// points to `options->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_open_shared(
    out: *mut *mut tenure_cache,
    name: *const c_char,
    options: *const tenure_cache_options,
) -> c_int {
    answer(|| {
        if out.is_null() || name.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: handed on to the caller.
        let (name, options) = unsafe { (CStr::from_ptr(name), chosen_options(options)?) };
        let name = name.to_str().map_err(|_| INVALID)?;
        let cache = Cache::Shared(SharedCache::open(name, options)?);
        // SAFETY: not NULL, so it points to a pointer.
        unsafe { out.write(Box::into_raw(Box::new(tenure_cache(cache)))) };
        Ok(0)
    })
}

/// Returns the options of the caller; NULL stands for the defaults.
///
/// # Safety
///
/// `options` is NULL or points to `options->size` bytes.
unsafe fn chosen_options(options: *const tenure_cache_options) -> Result<CacheOptions, Errno> {
    if options.is_null() {
        return Ok(CacheOptions::new());
    }
    // SAFETY: handed on to the caller.
    match unsafe { read_options(options) }?.max_bytes {
        0 => Ok(CacheOptions::new()),
        max_bytes => Ok(CacheOptions::new().max_bytes(max_bytes)),
    }
}

// SAFETY: `repr(C)`, `size` is its first field, and all are integers.
unsafe impl WithSize for tenure_cache_options {
    const FIRST_SIZE: usize = offset_of!(tenure_cache_options, max_bytes) + size_of::<usize>();
}

/// Closes a cache and frees its values: with `munmap()`, or, while they are pinned, with the
/// last `tenure_cache_unpin()`.
///
/// `cache` may be NULL; then nothing is done.
///
/// # Return value
///
/// None. `errno` is unchanged.
///
/// # Caveats
///
/// No thread may use the cache any more. Values that are pinned stay valid.
///
/// # See also
///
/// tenure_cache_new(3), tenure_cache_unpin(3), tenure(7)
///
/// # Safety
///
/// `cache` is NULL or was made by `tenure_cache_new()` or `tenure_cache_open_shared()`, and is
/// not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_close(cache: *mut tenure_cache) {
    answer_without_memory(|| {
        if !cache.is_null() {
            // SAFETY: the function that made it has leaked this box, and nobody uses it any more.
            drop(unsafe { Box::from_raw(cache) });
        }
        Ok(0)
    });
}

/// Looks a key up, and pins its value: it stays in memory, unchanged, until
/// `tenure_cache_unpin()`. A value that the kernel has been offered takes one system call,
/// `madvise(MADV_POPULATE_WRITE)`.
///
/// `key` may be NULL if `key_len` is 0. `*out` receives the value, or NULLs if there is none;
/// `out` must not be NULL. `data` is the start of a page for values of more than 3 KiB, and a
/// multiple of 8 for others; the `len` bytes must not be written. A value of which a
/// page was purged is a miss.
///
/// # Return value
///
/// 1 if there is a value, 0 if there is none, or one of the errors below, negative. `errno`
/// is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `cache` or `out` is NULL, or `key` is and `key_len` is not 0. Correct the
///   call.
/// * `-EINVAL`: `key_len` is larger than `TENURE_CACHE_MAX_KEY`. Use a hash of the key.
///
/// # Caveats
///
/// Each value must be unpinned once. Pinned values cannot be given up, also when they are
/// removed or replaced.
///
/// # See also
///
/// tenure_cache_unpin(3), tenure_cache_insert(3), tenure(7)
///
/// # Safety
///
/// `cache` is NULL or open, `key` points to `key_len` bytes, and `out` is NULL or points to
/// a value that is not pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_get(
    cache: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    out: *mut tenure_cache_value,
) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: not NULL, so it points to a value.
        unsafe { out.write(NOTHING) };
        // SAFETY: handed on to the caller.
        let (cache, key) = unsafe { (opened(cache)?, key_of(key, key_len)?) };
        let value = match cache {
            Cache::Own(cache) => cache.get(key).and_then(Pinned::into_raw).map(of_own),
            Cache::Shared(cache) => cache.get(key).map(of_shared),
        };
        let Some(value) = value else {
            return Ok(0);
        };
        // SAFETY: as above.
        unsafe { out.write(value) };
        Ok(1)
    })
}

fn of_own((data, len, pin): (*const u8, usize, NonNull<()>)) -> tenure_cache_value {
    tenure_cache_value {
        data: data.cast(),
        len,
        pin: pin.as_ptr().cast(),
    }
}

/// The lowest bit of a pin says that it is a value of a shared cache.
const IS_SHARED: usize = 1;

fn of_shared(value: SharedValue) -> tenure_cache_value {
    let value = Box::new(value);
    let (data, len) = (value.as_ptr().cast(), value.len());
    let pin = Box::into_raw(value).map_addr(|address| address | IS_SHARED);
    let pin = pin.cast();
    tenure_cache_value { data, len, pin }
}

const _: () = assert!(align_of::<SharedValue>() > IS_SHARED);

/// No value.
const NOTHING: tenure_cache_value = tenure_cache_value {
    data: ptr::null(),
    len: 0,
    pin: ptr::null_mut(),
};

/// Ends the use of a value that `tenure_cache_get()` has found: the kernel may purge it from
/// now on, with `madvise(MADV_FREE)`, once it has not been used for {VOLATILE_OFFER_DELAY}.
///
/// `*value` becomes NULLs; a value that is NULLs already is left alone, and `value` may be
/// NULL. The cache may have been closed, and another thread may have found the value.
///
/// # Return value
///
/// None. `errno` is unchanged.
///
/// # Caveats
///
/// `data` is not valid any more. A copy of the structure must not be unpinned again.
///
/// # See also
///
/// tenure_cache_get(3), tenure(7)
///
/// # Safety
///
/// `value` is NULL, or a value as `tenure_cache_get()` has written it, of which no copy was
/// unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_unpin(value: *mut tenure_cache_value) {
    answer_without_memory(|| {
        if value.is_null() {
            return Ok(0);
        }
        // SAFETY: not NULL, so it points to a value.
        let pin = unsafe { value.replace(NOTHING) }.pin;
        if pin.addr() & IS_SHARED != 0 {
            let value = pin.cast::<SharedValue>().map_addr(|it| it & !IS_SHARED);
            // SAFETY: `of_shared` has leaked this box, and the caller unpins it once.
            drop(unsafe { Box::from_raw(value) });
        } else if let Some(pin) = NonNull::new(pin) {
            // SAFETY: `tenure_cache_get` has taken a guard apart into this, and the caller
            // unpins it once.
            unsafe { Pinned::unpin_raw(pin.cast()) };
        }
        Ok(0)
    });
}

/// Inserts a copy of a value, and replaces the key's previous one. For memory, the cache
/// gives up others, with `munmap()` and `madvise(MADV_DONTNEED)`, of this or a lower priority.
///
/// `key` may be NULL if `key_len` is 0, and `value` if `len` is 0; tenure does not use them
/// after the call. `priority` is 0 (given up first) to {VOLATILE_PRIORITY_MAX} (given up
/// last). Values of up to 3 KiB share pages; others take whole pages.
///
/// A cache may give up a value at any time. So the call also succeeds if there is no memory
/// for this one: then the key has no value, and `refused` of `tenure_cache_stats()` counts it.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With nothing done:
///
/// * `-EFAULT`: `cache` is NULL, or `key` or `value` is and its length is not 0. Correct the
///   call.
/// * `-EINVAL`: `priority` is larger than {VOLATILE_PRIORITY_MAX}, or `key_len` than
///   `TENURE_CACHE_MAX_KEY`. Correct the call; use a hash of the key.
///
/// With the previous value of the key gone:
///
/// * `-ENOMEM`: There is no address space for the value. Raise RLIMIT_AS.
///
/// With nothing done, of a cache that processes share:
///
/// * `-EPROTO`: Its file was truncated. Open it anew.
///
/// # Notes
///
/// Keys stay in the memory of `malloc()`, which cannot be purged.
///
/// # See also
///
/// tenure_cache_get(3), tenure_cache_remove(3), tenure_cache_stats(3), tenure(7)
///
/// # Safety
///
/// `cache` is NULL or open, `key` points to `key_len` bytes, and `value` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_insert(
    cache: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
    priority: c_uint,
) -> c_int {
    answer(|| {
        // SAFETY: handed on to the caller.
        let (cache, key) = unsafe { (opened(cache)?, key_of(key, key_len)?) };
        if value.is_null() && len != 0 {
            return Err(BAD_POINTER);
        }
        let priority = Priority::ALL.get(priority as usize).ok_or(INVALID)?;
        match cache {
            Cache::Own(cache) => {
                cache.insert_counted(key.into(), key_len, len, *priority, |place| {
                    let (from, to) = (value.cast(), place.as_mut_ptr());
                    // SAFETY: `value` points to `len` bytes, as many as the place has, which
                    // the cache has made for this value.
                    unsafe { ptr::copy_nonoverlapping(from, to, place.len()) };
                })?;
            }
            Cache::Shared(cache) => {
                // No more can be in memory, or in a cache.
                let bytes = match len.min(isize::MAX as usize) {
                    0 => &[],
                    // SAFETY: `value` points to `len` bytes, and is not NULL.
                    len => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) },
                };
                cache.insert(key, bytes, *priority)?;
            }
        }
        Ok(0)
    })
}

/// Removes the value of a key, and frees its memory with `madvise(MADV_DONTNEED)` or
/// `munmap()`: now, with its last pin, or together with its neighbours in the same pages.
///
/// `key` may be NULL if `key_len` is 0.
///
/// # Return value
///
/// 1 if there was a value, 0 if there was none, or one of the errors below, negative.
/// `errno` is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `cache` is NULL, or `key` is and `key_len` is not 0. Correct the call.
/// * `-EINVAL`: `key_len` is larger than `TENURE_CACHE_MAX_KEY`. No value has such a key.
///
/// # See also
///
/// tenure_cache_insert(3), tenure_cache_close(3), tenure(7)
///
/// # Safety
///
/// `cache` is NULL or open, and `key` points to `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_remove(
    cache: *mut tenure_cache,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: handed on to the caller.
        let (cache, key) = unsafe { (opened(cache)?, key_of(key, key_len)?) };
        Ok(c_int::from(match cache {
            Cache::Own(cache) => cache.remove(key),
            Cache::Shared(cache) => cache.remove(key),
        }))
    })
}

/// Reads what a cache has done, and how large it is, from counters in the program's memory.
///
/// `*out` receives the counters; `out` must not be NULL. `size_of_out` is `sizeof(*out)` as
/// the program was built with it: of a smaller structure only that much is written, and
/// fields that this version of tenure does not know are set to zeros. While other threads
/// use the cache, two counters may be from two moments.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `cache` or `out` is NULL. Correct the call.
/// * `-EPROTO`: The file of a cache that processes share was truncated. Open it anew.
///
/// # See also
///
/// tenure_cache_new(3), tenure_stats(3), tenure(7)
///
/// # Safety
///
/// `cache` is NULL or open, and `out` is NULL or has space for `size_of_out` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_stats(
    cache: *mut tenure_cache,
    out: *mut tenure_cache_stats,
    size_of_out: usize,
) -> c_int {
    answer_without_memory(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: handed on to the caller.
        let stats = match unsafe { opened(cache) }? {
            Cache::Own(cache) => cache.stats(),
            Cache::Shared(cache) => cache.stats()?,
        };
        let stats = tenure_cache_stats::from(stats);
        // SAFETY: `out` is not NULL, so it has space for `size_of_out` bytes.
        unsafe { write_stats(&stats, out, size_of_out) }
    })
}

/// Writes as much of the counters as the caller's structure has, and zeros after that.
///
/// # Safety
///
/// `out` has space for `size_of_out` bytes.
unsafe fn write_stats(
    stats: &tenure_cache_stats,
    out: *mut tenure_cache_stats,
    size_of_out: usize,
) -> Answer {
    let known = size_of_out.min(size_of::<tenure_cache_stats>());
    let bytes = out.cast::<u8>();
    // SAFETY: both structures have at least `known` bytes, and `out` has `size_of_out`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(stats).cast(), bytes, known);
        bytes.add(known).write_bytes(0, size_of_out - known);
    }
    Ok(0)
}

impl From<CacheStats> for tenure_cache_stats {
    fn from(stats: CacheStats) -> Self {
        Self {
            hits: stats.hits,
            misses: stats.misses,
            insertions: stats.insertions,
            evictions: stats.evicted,
            purged: stats.purged,
            values: stats.values,
            bytes: stats.bytes,
            refused: stats.refused,
        }
    }
}

/// Returns the cache.
///
/// # Safety
///
/// `cache` is NULL or open while the result is used.
unsafe fn opened<'a>(cache: *mut tenure_cache) -> Result<&'a Cache, Errno> {
    // SAFETY: handed on to the caller.
    unsafe { cache.as_ref() }
        .map(|cache| &cache.0)
        .ok_or(BAD_POINTER)
}

/// Returns the bytes of a key.
///
/// # Safety
///
/// `key` points to `key_len` bytes while the result is used.
unsafe fn key_of<'a>(key: *const c_void, key_len: usize) -> Result<&'a [u8], Errno> {
    match key_len {
        0 => Ok(&[]),
        _ if key.is_null() => Err(BAD_POINTER),
        1..=TENURE_CACHE_MAX_KEY => {
            // SAFETY: handed on to the caller.
            Ok(unsafe { std::slice::from_raw_parts(key.cast(), key_len) })
        }
        _ => Err(INVALID),
    }
}
