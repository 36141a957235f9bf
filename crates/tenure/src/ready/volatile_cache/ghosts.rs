//! Which keys were evicted lately.

/// The fingerprints of one bucket.
const WAYS: usize = 7;

/// The keys that were evicted from the probationary queue lately, as fingerprints of 2
/// bytes: one that comes back was given up too early, and skips that queue. About one in
/// 9,000 other keys does so by mistake.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    buckets: Box<[Bucket]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    fingerprints: [u16; WAYS],
    /// The oldest of them.
    next: u16,
}

impl Ghosts {
    /// Adds a key. The capacity follows the number of values.
    pub(super) fn add(&mut self, hash: u32, values: usize) {
        let wanted = (values / WAYS).next_power_of_two();
        if wanted > self.buckets.len() {
            // Growing forgets the older hashes, and happens a few times only.
            self.buckets = vec![Bucket::default(); wanted].into_boxed_slice();
        }
        let (index, fingerprint) = self.place(hash);
        let bucket = &mut self.buckets[index];
        bucket.fingerprints[usize::from(bucket.next)] = fingerprint;
        bucket.next = (bucket.next + 1) % WAYS as u16;
    }

    /// Whether the key was evicted lately.
    pub(super) fn has(&self, hash: u32) -> bool {
        !self.buckets.is_empty() && {
            let (index, fingerprint) = self.place(hash);
            self.buckets[index].fingerprints.contains(&fingerprint)
        }
    }

    /// Removes a key. Returns whether it was there.
    pub(super) fn remove(&mut self, hash: u32) -> bool {
        if self.buckets.is_empty() {
            return false;
        }
        let (index, fingerprint) = self.place(hash);
        let mut known = self.buckets[index].fingerprints.iter_mut();
        let found = known.find(|known| **known == fingerprint);
        found.map(|known| *known = 0).is_some()
    }

    /// Returns the bucket of the key, and its fingerprint, which is not 0.
    fn place(&self, hash: u32) -> (usize, u16) {
        // Other bits than those of the bucket, as long as these are fewer than 16.
        let fingerprint = (hash.wrapping_mul(0x9E37_79B1) >> 16) as u16;
        (hash as usize & (self.buckets.len() - 1), fingerprint.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_key_is_known_once_and_displaced_by_later_ones() {
        let mut ghosts = Ghosts::default();
        assert!(!ghosts.remove(5));
        ghosts.add(5, 1000);
        assert!(ghosts.remove(5) && !ghosts.remove(5));
        for hash in 0..1000_u32 {
            ghosts.add(hash.wrapping_mul(0x85EB_CA6B), 1000);
        }
        let known = |hashes: std::ops::Range<u32>, ghosts: &mut Ghosts| {
            hashes
                .filter(|hash| ghosts.remove(hash.wrapping_mul(0x85EB_CA6B)))
                .count()
        };
        assert!(known(900..1000, &mut ghosts) > 90);
        for hash in 0..10_000_u32 {
            ghosts.add(hash.wrapping_mul(0xC2B2_AE35), 1000);
        }
        assert!(known(0..900, &mut ghosts) < 90);
    }
}
