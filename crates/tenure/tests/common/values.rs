//! Values of caches.

use std::hash::Hash;
use std::sync::LazyLock;

use tenure::{VolatileCache, page_size};

/// Returns a value that identifies its key; no page of it equals another or is zero.
pub fn value(key: u64, len: usize) -> Vec<u8> {
    const SHIFTS: usize = 4093;
    static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let bytes =
            (0..SHIFTS + (2 << 20)).map(|index| (index * index / 3 + index / 256) as u8 | 1);
        bytes.collect()
    });
    let mut bytes = ROW[key as usize % SHIFTS..][..len].to_vec();
    for page in bytes.chunks_exact_mut(page_size()) {
        page[..8].copy_from_slice(&(!key).to_ne_bytes());
    }
    bytes
}

pub fn is_value(bytes: &[u8], key: u64) -> bool {
    bytes == value(key, bytes.len()).as_slice()
}

/// Asserts that a cache has counted each value once.
pub fn assert_adds_up<K: Hash + Eq>(cache: &VolatileCache<K>) {
    let stats = cache.stats();
    assert_eq!(
        stats.insertions,
        stats.values + stats.removed + stats.purged + stats.evicted,
        "{stats:?}"
    );
    assert_eq!(stats.values, cache.len() as u64);
    assert_eq!(stats.values == 0, stats.bytes == 0);
}
