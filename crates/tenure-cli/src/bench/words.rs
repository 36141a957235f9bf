//! Ascending words, and the search for one among them: what is done with a block
//! that was taken.

use fastrand::Rng;

/// The length of a word.
pub const WORD_BYTES: usize = size_of::<u64>();

/// Draws words in ascending order, at least 2 apart.
pub fn ascending(rng: &mut Rng) -> impl Iterator<Item = u64> {
    let mut word = 0;
    std::iter::repeat_with(move || {
        word += 2 + u64::from(rng.u32(..));
        word
    })
}

/// Returns the word of that index.
pub fn at(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes.as_chunks::<WORD_BYTES>().0[index])
}

/// Looks for `wanted` among ascending words.
pub fn contain(bytes: &[u8], wanted: u64) -> bool {
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    words
        .binary_search_by_key(&wanted, |&word| u64::from_ne_bytes(word))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_missing_ones_are_not() {
        const COUNT: usize = 1000;
        let mut rng = Rng::with_seed(3);
        let words = ascending(&mut rng).take(COUNT);
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        for index in [0, 1, 777, COUNT - 1] {
            assert!(contain(&bytes, at(&bytes, index)));
            assert!(!contain(&bytes, at(&bytes, index) + 1));
        }
        assert!(!contain(&vec![0; bytes.len()], at(&bytes, 99)));
    }
}
