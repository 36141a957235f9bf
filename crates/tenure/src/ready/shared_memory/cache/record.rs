//! The record in the place of a value: a head, the key and the bytes.

/// The bytes of the head.
pub(super) const HEAD: usize = 16;

/// Returns the head and the key. `made_at` is on the monotonic clock, in nanoseconds.
pub(super) fn start(key: &[u8], made_at: u64) -> Vec<u8> {
    let mut start = Vec::with_capacity(HEAD + key.len());
    start.extend_from_slice(&made_at.to_ne_bytes());
    start.extend_from_slice(&(key.len() as u64).to_ne_bytes());
    start.extend_from_slice(key);
    start
}

/// Returns the bytes of the head and the key of a record, of which there is the head.
pub(super) fn start_bytes(head: &[u8]) -> Option<usize> {
    HEAD.checked_add(usize::try_from(word(head, 8)?).ok()?)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(word.try_into().ok()?))
}

/// A record that was copied.
pub(super) struct Record<'a> {
    pub(super) made_at: u64,
    pub(super) key: &'a [u8],
    /// Where the value begins.
    pub(super) value_at: usize,
}

impl<'a> Record<'a> {
    /// Parses bytes that any process may have written.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let value_at = start_bytes(bytes)?;
        Some(Self {
            made_at: word(bytes, 0)?,
            key: bytes.get(HEAD..value_at)?,
            value_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_parsed_and_garbage_refused() {
        let mut bytes = start(b"key", 7);
        bytes.extend_from_slice(b"value");
        assert_eq!(bytes.len(), HEAD + 3 + 5);
        let record = Record::parse(&bytes).unwrap();
        assert_eq!((record.made_at, record.key), (7, &b"key"[..]));
        assert_eq!(&bytes[record.value_at..], b"value");
        for len in 0..HEAD + 3 {
            assert!(Record::parse(&bytes[..len]).is_none());
        }
        bytes[15] = 0xff;
        assert!(Record::parse(&bytes).is_none());
    }
}
