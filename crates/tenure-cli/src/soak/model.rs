//! What is known of each page, and whether what is seen of it agrees.

use std::sync::LazyLock;

use tenure::{LockMode, page_size};

/// What is not as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub what: String,
    pub expected: String,
    pub found: String,
    /// The address of the page, where it is about one.
    pub page: Option<usize>,
}

impl Wrong {
    /// Makes one that is about no page.
    pub fn new(what: &str, expected: impl ToString, found: impl ToString) -> Self {
        Self {
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
            page: None,
        }
    }
}

/// Where the rows of bytes begin that contents are made of.
const SHIFTS: usize = 4093;

/// No byte is zero. (Comparing and copying are fast also where nothing has been
/// optimized.)
static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |index: usize| (index * index / 3 + index / 256) as u8 | 1;
    (0..page_size() + SHIFTS).map(byte).collect()
});

static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; page_size()]);

/// Makes the rows. A forked child must not be the first to need them.
pub fn prepare() {
    LazyLock::force(&ROW);
    LazyLock::force(&ZEROS);
}

/// The bytes between the first and the last eight of a page, which are the stamp
/// itself.
fn middle(stamp: u64) -> &'static [u8] {
    &ROW[(stamp % SHIFTS as u64) as usize..][8..page_size() - 8]
}

/// Writes the contents of a page.
pub fn fill(page: &mut [u8], stamp: u64) {
    let end = page_size() - 8;
    page[..8].copy_from_slice(&stamp.to_ne_bytes());
    page[8..end].copy_from_slice(middle(stamp));
    page[end..].copy_from_slice(&stamp.to_ne_bytes());
}

/// Whether every byte is as the stamp says; stamp 0 is zeros.
fn is_right(page: &[u8], stamp: u64) -> bool {
    if stamp == 0 {
        return page == ZEROS.as_slice();
    }
    let (bytes, end) = (stamp.to_ne_bytes(), page_size() - 8);
    page[..8] == bytes && page[8..end] == *middle(stamp) && page[end..] == bytes
}

/// Returns the first byte of the page that is not as the stamp says.
fn first_wrong_byte(page: &[u8], stamp: u64) -> Option<usize> {
    let mut wanted = ZEROS.clone();
    if stamp != 0 {
        fill(&mut wanted, stamp);
    }
    (0..page.len()).find(|&byte| page[byte] != wanted[byte])
}

fn contents(stamp: u64) -> String {
    match stamp {
        0 => "zeros".to_owned(),
        stamp => format!("contents {stamp:#018x}"),
    }
}

/// Says what a page looks like: whose contents it has, as far as that can be told.
fn looks_like(page: &[u8], stamp: u64) -> String {
    let first = u64::from_ne_bytes(page[..8].try_into().unwrap_or_default());
    let Some(byte) = first_wrong_byte(page, stamp) else {
        return contents(stamp);
    };
    match first_wrong_byte(page, first) {
        None => contents(first),
        Some(_) => {
            let end = (byte + 16).min(page.len());
            format!("other bytes from {byte} on: {:02x?}", &page[byte..end])
        }
    }
}

/// What is seen of a page.
#[derive(Clone, Copy)]
pub enum Seen<'a> {
    Bytes(&'a [u8]),
    /// Nobody can read it.
    Missing,
}

/// One page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// What was written last; 0 is nothing: it reads as zeros.
    pub stamp: u64,
    pub volatile: bool,
    /// Freed lazily: it may turn into zeros at any time, without a word.
    pub lazy: bool,
    /// Volatile, and found to be lost: it is never seen again, and unmarking tells.
    pub gone: bool,
    /// It may have memory of its own, which can be lost also if it is zeros.
    pub own: bool,
    pub lock: Option<LockMode>,
}

impl Page {
    fn may_be_lost(&self) -> bool {
        self.volatile && (self.own || self.stamp != 0)
    }

    /// Whether it is memory that the kernel cannot take.
    pub fn is_firm(&self) -> bool {
        self.own && !self.gone && (self.lock.is_some() || !(self.volatile || self.lazy))
    }

    fn wrong(&self, what: &str, expected: impl ToString, found: impl ToString) -> Wrong {
        let what = format!("{what} ({self:x?})");
        Wrong::new(&what, expected, found)
    }

    /// Compares it with what is seen, and learns from that.
    pub fn look(&mut self, seen: Seen) -> Result<(), Wrong> {
        match seen {
            Seen::Missing if self.may_be_lost() => self.gone = true,
            Seen::Missing => {
                return Err(self.wrong(
                    "a page cannot be read",
                    contents(self.stamp),
                    "nothing to be read",
                ));
            }
            Seen::Bytes(bytes) if self.gone => {
                return Err(self.wrong(
                    "a lost page is there again, and nobody has been told of the loss",
                    "nothing to be read",
                    looks_like(bytes, self.stamp),
                ));
            }
            Seen::Bytes(bytes) => {
                if !is_right(bytes, self.stamp) {
                    if !self.lazy || !is_right(bytes, 0) {
                        return Err(self.wrong(
                            "a page has other contents",
                            contents(self.stamp),
                            looks_like(bytes, self.stamp),
                        ));
                    }
                    // Taken, and it does not come back.
                    self.stamp = 0;
                }
            }
        }
        Ok(())
    }

    /// It has been unmarked, and the answer was that it is lost, or that it is not.
    /// What it holds is to be looked at after that.
    pub fn unmarked(&mut self, reported_lost: bool) -> Result<(), Wrong> {
        if reported_lost && !self.may_be_lost() {
            return Err(self.wrong("a page is reported lost", "no loss", "reported lost"));
        }
        if !reported_lost && self.gone {
            return Err(self.wrong("a page is lost", "reported lost", "not reported"));
        }
        if reported_lost {
            self.stamp = 0;
        }
        (self.gone, self.volatile) = (false, false);
        Ok(())
    }

    /// It has been asked to be taken, if it is volatile.
    pub fn purged(&mut self) {
        // Zeros are kept, unless they have memory of their own, and what is lazily
        // free may have been zeros before.
        self.gone |= self.volatile && self.stamp != 0 && !self.lazy;
    }

    /// Its contents are other ones from now on.
    pub fn holds(&mut self, stamp: u64) {
        (self.stamp, self.lazy, self.own) = (stamp, false, true);
    }

    /// It has been freed lazily.
    pub fn freed(&mut self) {
        if self.gone {
            // Nobody is going to be told.
            (self.gone, self.stamp) = (false, 0);
        }
        (self.lazy, self.volatile) = (self.stamp != 0, false);
    }

    /// It is as fresh memory.
    pub fn emptied(&mut self, stamp: u64, own: bool) {
        *self = Self {
            stamp,
            own,
            lock: self.lock,
            ..Self::default()
        };
    }
}

/// How many pages there are in so many bytes.
pub fn pages_in(bytes: usize) -> usize {
    bytes / page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: u64 = 0x0123_4567_89ab_cdef;

    fn page_of(stamp: u64) -> Vec<u8> {
        let mut bytes = vec![0; page_size()];
        if stamp != 0 {
            fill(&mut bytes, stamp);
        }
        bytes
    }

    fn volatile() -> Page {
        Page {
            stamp: STAMP,
            volatile: true,
            own: true,
            ..Page::default()
        }
    }

    #[test]
    fn any_wrong_byte_is_noticed() {
        let mut page = Page::default();
        page.holds(STAMP);
        let mut bytes = page_of(STAMP);
        assert_eq!(page.look(Seen::Bytes(&bytes)), Ok(()));
        for byte in [0, 1, 7, 8, 2047, page_size() - 1] {
            for bit in [1, 0x80] {
                bytes[byte] ^= bit;
                let wrong = page.look(Seen::Bytes(&bytes)).unwrap_err();
                assert!(
                    wrong.found.contains(&format!("from {byte} on")),
                    "{wrong:?}"
                );
                bytes[byte] ^= bit;
            }
        }
        assert!(page.look(Seen::Bytes(&page_of(0))).is_err());
        assert!(page.look(Seen::Missing).is_err());
        let others = page.look(Seen::Bytes(&page_of(STAMP + 1))).unwrap_err();
        assert_eq!(others.found, contents(STAMP + 1));
    }

    #[test]
    fn a_loss_has_to_be_reported() {
        let mut page = volatile();
        page.look(Seen::Missing).unwrap();
        assert!(page.clone().unmarked(false).is_err());
        page.unmarked(true).unwrap();
        page.look(Seen::Bytes(&page_of(0))).unwrap();

        // It was not seen to go: its contents tell.
        let mut page = volatile();
        page.unmarked(false).unwrap();
        assert!(page.look(Seen::Bytes(&page_of(0))).is_err());
    }

    #[test]
    fn what_is_reported_lost_has_to_be() {
        let mut page = volatile();
        page.unmarked(true).unwrap();
        assert!(page.look(Seen::Bytes(&page_of(STAMP))).is_err());

        let ordinary = Page {
            volatile: false,
            ..volatile()
        };
        assert!(ordinary.clone().unmarked(true).is_err());
        let untouched = Page {
            volatile: true,
            ..Page::default()
        };
        assert!(untouched.clone().unmarked(true).is_err());
    }

    #[test]
    fn a_lost_page_does_not_come_back() {
        let mut page = volatile();
        page.purged();
        assert!(page.clone().look(Seen::Bytes(&page_of(STAMP))).is_err());
        assert!(page.clone().look(Seen::Bytes(&page_of(0))).is_err());
        assert!(page.clone().unmarked(false).is_err());
        page.look(Seen::Missing).unwrap();
    }

    #[test]
    fn what_is_lazily_free_is_as_it_was_or_zeros_and_then_stays_zeros() {
        let mut page = Page::default();
        page.holds(STAMP);
        page.freed();
        page.look(Seen::Bytes(&page_of(STAMP))).unwrap();
        assert!(page.clone().look(Seen::Bytes(&page_of(STAMP + 1))).is_err());
        page.look(Seen::Bytes(&page_of(0))).unwrap();
        assert!(page.look(Seen::Bytes(&page_of(STAMP))).is_err());
    }
}
