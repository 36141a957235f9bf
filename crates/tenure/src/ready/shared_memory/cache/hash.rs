//! SipHash-1-3 with a key of the file: all processes compute the same, whatever version of the
//! standard library they have.

/// Returns the hash of the bytes.
pub(super) fn hash(seed: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        seed[0] ^ 0x736f_6d65_7073_6575,
        seed[1] ^ 0x646f_7261_6e64_6f6d,
        seed[0] ^ 0x6c79_6765_6e65_7261,
        seed[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        add(&mut state, word);
    }
    let rest = words.remainder().iter().rev();
    let rest = rest.fold(0, |word, &byte| word << 8 | u64::from(byte));
    add(&mut state, (bytes.len() as u64) << 56 | rest);
    state[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut state));
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn add(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn hash_is_siphash_1_3() {
        let bytes: Vec<u8> = (0..100).collect();
        for len in 0..bytes.len() {
            let mut expected = std::hash::DefaultHasher::new();
            expected.write(&bytes[..len]);
            assert_eq!(hash([0, 0], &bytes[..len]), expected.finish());
        }
        assert_ne!(hash([1, 0], &bytes), hash([0, 0], &bytes));
    }
}
