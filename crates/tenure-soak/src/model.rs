//! The model of a page: what it may hold, and whether an observation agrees.

use std::fmt::Display;
use std::sync::LazyLock;

use tenure::{LockMode, page_size};

/// The result of a check; the error describes a mismatch.
pub type Checked<T = ()> = Result<T, String>;

pub fn mismatch<T>(what: &str, expected: impl Display, found: impl Display) -> Checked<T> {
    let text = format!("{what}\n  expected: {expected}\n  found:    {found}");
    Err(text)
}

/// At how many offsets into [`ROW`] the contents of a page can begin.
const OFFSETS: usize = 4093;

/// Bytes, none of them zero, from which contents are copied: copying and comparing
/// slices is fast also in builds without optimization.
static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |index: usize| (index * index / 3 + index / 256) as u8 | 1;
    (0..page_size() + OFFSETS).map(byte).collect()
});

static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; page_size()]);

/// Makes the tables, because a forked child must not initialize them.
pub fn prepare() {
    LazyLock::force(&ROW);
    LazyLock::force(&ZEROS);
}

/// Returns the bytes between the first and the last eight of a page, which hold the
/// pattern itself.
fn middle(pattern: u64) -> &'static [u8] {
    &ROW[(pattern % OFFSETS as u64) as usize..][8..page_size() - 8]
}

/// Writes the contents that a pattern stands for; pattern 0 is zeros.
pub fn fill(page: &mut [u8], pattern: u64) {
    if pattern == 0 {
        return page.fill(0);
    }
    let end = page_size() - 8;
    page[..8].copy_from_slice(&pattern.to_ne_bytes());
    page[8..end].copy_from_slice(middle(pattern));
    page[end..].copy_from_slice(&pattern.to_ne_bytes());
}

fn holds(page: &[u8], pattern: u64) -> bool {
    if pattern == 0 {
        return page == ZEROS.as_slice();
    }
    let (bytes, end) = (pattern.to_ne_bytes(), page_size() - 8);
    page[..8] == bytes && page[8..end] == *middle(pattern) && page[end..] == bytes
}

fn contents(pattern: u64) -> String {
    match pattern {
        0 => "zeros".to_owned(),
        pattern => format!("contents {pattern:#018x}"),
    }
}

/// Describes a page by the pattern that it holds, or by its first wrong bytes.
fn describe(page: &[u8], expected: u64) -> String {
    let first = u64::from_ne_bytes(page[..8].try_into().unwrap_or_default());
    let mut wanted = ZEROS.clone();
    fill(&mut wanted, expected);
    match (0..page.len()).find(|&byte| page[byte] != wanted[byte]) {
        None => contents(expected),
        Some(_) if holds(page, first) => contents(first),
        Some(byte) => {
            let end = (byte + 16).min(page.len());
            format!("other bytes from {byte} on: {:02x?}", &page[byte..end])
        }
    }
}

/// An observation of a page.
#[derive(Clone, Copy)]
pub enum Seen<'a> {
    Bytes(&'a [u8]),
    /// It cannot be read.
    Absent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The pattern that was written last; 0 reads as zeros.
    pub pattern: u64,
    pub volatile: bool,
    /// It may turn into zeros at any time, without a report.
    pub lazily_free: bool,
    /// It is volatile and was observed to be purged: nothing can read it until it is
    /// unmarked, which must report it.
    pub purged: bool,
    /// It may have memory of its own, which can be purged also if it holds zeros.
    pub backed: bool,
    pub lock: Option<LockMode>,
}

impl Page {
    pub fn new(pattern: u64) -> Self {
        Self {
            pattern,
            ..Self::default()
        }
    }

    fn may_be_purged(&self) -> bool {
        self.volatile && (self.backed || self.pattern != 0)
    }

    /// Whether it uses memory that the kernel cannot reclaim.
    pub fn is_unreclaimable(&self) -> bool {
        let is_offered = self.volatile || self.lazily_free;
        self.backed && !self.purged && (self.lock.is_some() || !is_offered)
    }

    fn mismatch(&self, what: &str, expected: impl Display, found: impl Display) -> Checked {
        mismatch(&format!("{what} ({self:x?})"), expected, found)
    }

    /// Compares it with an observation, and learns from that.
    pub fn observe(&mut self, seen: Seen) -> Checked {
        let expected = contents(self.pattern);
        match seen {
            Seen::Absent if self.may_be_purged() => self.purged = true,
            Seen::Absent => return self.mismatch("a page is absent", expected, "nothing to read"),
            Seen::Bytes(bytes) if self.purged => {
                let found = describe(bytes, self.pattern);
                let what = "a purged page can be read before it was reported";
                return self.mismatch(what, "nothing to read", found);
            }
            Seen::Bytes(bytes) if holds(bytes, self.pattern) => {}
            // Its memory was reclaimed, and does not come back.
            Seen::Bytes(bytes) if self.lazily_free && holds(bytes, 0) => self.pattern = 0,
            Seen::Bytes(bytes) => {
                let found = describe(bytes, self.pattern);
                return self.mismatch("a page has other contents", expected, found);
            }
        }
        Ok(())
    }

    /// Learns that it was unmarked, and whether it was reported purged. The caller
    /// observes its contents next.
    pub fn unmarked(&mut self, reported: bool) -> Checked {
        if reported && !self.may_be_purged() {
            return self.mismatch("a page is reported purged", "no report", "a report");
        }
        if !reported && self.purged {
            return self.mismatch("a page is purged", "a report", "no report");
        }
        if reported {
            self.pattern = 0;
        }
        (self.purged, self.volatile) = (false, false);
        Ok(())
    }

    /// Learns that `purge` was called.
    pub fn purge(&mut self) {
        // A zeroed page stays, unless it has memory of its own; a lazily free page may
        // have become one before.
        self.purged |= self.volatile && self.pattern != 0 && !self.lazily_free;
    }

    /// Learns that it was written.
    pub fn write(&mut self, pattern: u64) {
        (self.pattern, self.lazily_free, self.backed) = (pattern, false, true);
    }

    /// Learns that it was freed lazily, which ends being volatile without a report.
    pub fn lazy_free(&mut self) {
        if self.purged {
            (self.purged, self.pattern) = (false, 0);
        }
        (self.lazily_free, self.volatile) = (self.pattern != 0, false);
    }

    /// Learns that it is fresh memory.
    pub fn reset(&mut self, pattern: u64, backed: bool) {
        let lock = self.lock;
        *self = Self {
            backed,
            lock,
            ..Self::new(pattern)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: u64 = 0x0123_4567_89ab_cdef;

    fn page_of(pattern: u64) -> Vec<u8> {
        let mut bytes = vec![0; page_size()];
        fill(&mut bytes, pattern);
        bytes
    }

    fn volatile() -> Page {
        Page {
            volatile: true,
            backed: true,
            ..Page::new(PATTERN)
        }
    }

    #[test]
    fn page_with_any_bit_changed_is_a_mismatch() {
        let mut page = Page::default();
        page.write(PATTERN);
        let mut bytes = page_of(PATTERN);
        assert_eq!(page.observe(Seen::Bytes(&bytes)), Ok(()));
        for byte in [0, 1, 7, 8, 2047, page_size() - 1] {
            for bit in [1, 0x80] {
                bytes[byte] ^= bit;
                let wrong = page.observe(Seen::Bytes(&bytes)).unwrap_err();
                let place = format!("from {byte} on");
                assert!(wrong.contains(&place), "{wrong}");
                bytes[byte] ^= bit;
            }
        }
        assert!(page.observe(Seen::Bytes(&page_of(0))).is_err());
        assert!(page.observe(Seen::Absent).is_err());
        let others = page.observe(Seen::Bytes(&page_of(PATTERN + 1)));
        assert!(others.unwrap_err().ends_with(&contents(PATTERN + 1)));
    }

    #[test]
    fn purged_page_without_a_report_is_a_mismatch() {
        let mut page = volatile();
        page.observe(Seen::Absent).unwrap();
        assert!(page.clone().unmarked(false).is_err());
        page.unmarked(true).unwrap();
        page.observe(Seen::Bytes(&page_of(0))).unwrap();

        // Nothing observed it absent: its contents give it away.
        let mut page = volatile();
        page.unmarked(false).unwrap();
        assert!(page.observe(Seen::Bytes(&page_of(0))).is_err());
    }

    #[test]
    fn report_of_a_page_that_was_not_purged_is_a_mismatch() {
        let mut page = volatile();
        page.unmarked(true).unwrap();
        assert!(page.observe(Seen::Bytes(&page_of(PATTERN))).is_err());

        let (mut ordinary, mut untouched) = (volatile(), volatile());
        ordinary.volatile = false;
        assert!(ordinary.unmarked(true).is_err());
        (untouched.pattern, untouched.backed) = (0, false);
        assert!(untouched.unmarked(true).is_err());
    }

    #[test]
    fn purged_page_that_can_be_read_is_a_mismatch() {
        let mut page = volatile();
        page.purge();
        let again = |pattern| page.clone().observe(Seen::Bytes(&page_of(pattern)));
        assert!(again(PATTERN).is_err() && again(0).is_err());
        assert!(page.clone().unmarked(false).is_err());
        page.observe(Seen::Absent).unwrap();
    }

    #[test]
    fn lazily_free_page_may_become_zeros_and_then_stays_zeros() {
        let mut page = Page::default();
        page.write(PATTERN);
        page.lazy_free();
        page.observe(Seen::Bytes(&page_of(PATTERN))).unwrap();
        let other = page.clone().observe(Seen::Bytes(&page_of(PATTERN + 1)));
        assert!(other.is_err());
        page.observe(Seen::Bytes(&page_of(0))).unwrap();
        assert!(page.observe(Seen::Bytes(&page_of(PATTERN))).is_err());
    }
}
