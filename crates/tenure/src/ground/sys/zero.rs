//! Writing zeros over large memory.

use crate::PageRange;

/// Writes zeros over the range, past the caches where the architecture can: nobody reads
/// them soon, and they would evict what the program uses.
///
/// # Safety
///
/// The range must be mapped writable, and nothing may rely on its contents.
pub(crate) unsafe fn write_zeros(range: PageRange) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the range is writable (the caller's contract) and whole pages, so that each
    // vector is aligned; every x86-64 has SSE2, and AVX was found.
    unsafe {
        match std::arch::is_x86_feature_detected!("avx") {
            true => stream_avx(range),
            false => stream_sse2(range),
        }
        // These stores are ordered before any later one, such as the publication.
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the range is writable (the caller's contract).
    unsafe {
        range.as_ptr().write_bytes(0, range.len());
    }
}

/// 32 bytes at a time: 52 to 57 GB/s instead of 41 to 46 on a machine with AVX-512, whose own
/// stores were no faster in base pages.
///
/// # Safety
///
/// The range must be mapped writable, and the processor must have AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_avx(range: PageRange) {
    use std::arch::x86_64::{__m256i, _mm256_setzero_si256, _mm256_stream_si256};
    let zero = _mm256_setzero_si256();
    let start = range.as_ptr().cast::<__m256i>();
    for lines in 0..range.len() / 128 {
        for part in 0..4 {
            // SAFETY: inside the range, which is whole pages and writable.
            unsafe { _mm256_stream_si256(start.add(4 * lines + part), zero) };
        }
    }
}

/// # Safety
///
/// The range must be mapped writable.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
unsafe fn stream_sse2(range: PageRange) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_stream_si128};
    let zero = _mm_setzero_si128();
    let start = range.as_ptr().cast::<__m128i>();
    for line in 0..range.len() / 64 {
        for part in 0..4 {
            // SAFETY: inside the range, which is whole pages and writable.
            unsafe { _mm_stream_si128(start.add(4 * line + part), zero) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::page_size;

    #[test]
    fn write_zeros_changes_the_range_alone() {
        let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        memory.as_mut_slice().unwrap().fill(1);
        let (start, page) = (memory.range().start(), page_size());
        let middle = PageRange::between(start + page, start + 3 * page);
        // SAFETY: the test's own memory.
        unsafe { write_zeros(middle) };
        assert_middle_is_zero(&memory);
        #[cfg(target_arch = "x86_64")]
        {
            memory.as_mut_slice().unwrap().fill(1);
            // SAFETY: the test's own memory.
            unsafe { stream_sse2(middle) };
            assert_middle_is_zero(&memory);
        }
    }

    fn assert_middle_is_zero(memory: &Mapping) {
        let page = page_size();
        let bytes = memory.as_slice();
        assert!(bytes[..page].iter().all(|&byte| byte == 1));
        assert!(bytes[page..3 * page].iter().all(|&byte| byte == 0));
        assert!(bytes[3 * page..].iter().all(|&byte| byte == 1));
    }
}
