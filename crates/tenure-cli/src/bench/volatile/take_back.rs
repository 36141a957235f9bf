//! What it costs to offer memory to the kernel, and to take it back when nothing,
//! some or all of it is gone.

use anyhow::{Result, ensure};
use tenure::{Features, page_size};

use super::{
    super::{
        Settings,
        experiment::{Case, Recorder, Unit, Way},
        sizes::Sizes,
        touch,
    },
    TIME,
    chunk::{self, Chunk, Contents, Plain, Tenure},
    delay::AtOnce,
};
use crate::text::bytes_text;

/// The tables.
pub const OFFER: &str = "Offer";
pub const TAKE_BACK: &str = "Take back what the kernel has been offered";

pub const DONT_NEED: &str = "MADV_DONTNEED, written again";
pub const NOTHING: &str = "tenure, nothing purged";
pub const SCATTERED: &str = "tenure, each 8th page purged";
pub const ALL: &str = "tenure, all purged";

/// Ranges of a sample: as many as have this size together, but no more than
/// [`MOST`].
const TOGETHER: usize = 16 << 20;
const MOST: usize = 64;
/// Up to this size there are many rounds.
const SMALL: usize = 1 << 20;
/// What the ranges hold, and what is written to the first byte of each page.
const OLD: u8 = 7;
const WRITTEN: u8 = 9;

/// Makes two cases for each size; none where the kernel cannot be offered memory.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let wanted: &[usize] = match settings.sizes {
        Sizes::Quick => &[4 * KIB, MIB, 16 * MIB],
        Sizes::Middle | Sizes::Full => &[4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 1024 * MIB],
    };
    if !Features::get().sigbus_on_missing() || Features::get().madv_populate.is_err() {
        let note = "Nothing is offered: this place has no userfaultfd, or no MADV_POPULATE.";
        notes.push(note.to_owned());
        return Ok(Vec::new());
    }
    let fitted = settings
        .room
        .fit(wanted[wanted.len() - 1], 4, page_size())?;
    notes.extend(fitted.note);
    notes.push(format!(
        "Offer, take back: one range; of small ones the mean of up to {MOST}. What tenure finds \
         purged it fills with the page of zeros. written again: one byte of each page."
    ));
    let mut lens: Vec<usize> = wanted.iter().map(|&len| len.min(fitted.len)).collect();
    lens.iter_mut()
        .for_each(|len| *len = len.next_multiple_of(page_size()));
    lens.dedup();
    let works = lens.iter().map(|&len| Work {
        count: (TOGETHER / len).clamp(1, MOST),
        len,
    });
    let case = |work: Work, ways: Vec<Way>, table: &str| {
        let case = Case::new(bytes_text(work.len as f64), ways).in_table(table);
        if work.len <= SMALL {
            case.short()
        } else {
            case
        }
    };
    let offered = works.clone().map(|work| case(work, work.offering(), OFFER));
    let taken = works.map(|work| case(work, work.taking_back(), TAKE_BACK));
    Ok(offered.chain(taken).collect())
}

/// Which pages of a range the kernel has taken.
#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Nothing,
    OnePage,
    Each8th,
    All,
}

impl Lost {
    fn pages(self, pages: usize) -> impl Iterator<Item = usize> {
        let (from, step, most) = match self {
            Self::Nothing => (0, 1, 0),
            Self::OnePage => (pages / 2, 1, 1),
            Self::Each8th => (0, 8, pages),
            Self::All => (0, 1, pages),
        };
        (from..pages).step_by(step).take(most)
    }
}

#[derive(Clone, Copy)]
struct Work {
    count: usize,
    len: usize,
}

/// A chunk that has been taken back.
type TakenBack<C> = (C, Contents);

impl Work {
    fn offering(self) -> Vec<Way> {
        vec![
            self.offer("MADV_DONTNEED", Plain::dont_need).baseline(),
            self.offer("MADV_FREE", Plain::free),
            self.offer("tenure", Tenure::new).tenure(),
        ]
    }

    fn taking_back(self) -> Vec<Way> {
        let older = |name, new| self.take_back(name, new, |_: &mut Plain| Ok(()), true);
        let tenure = |name, lost: Lost, is_written| {
            let pages = self.len / page_size();
            let lose = move |chunk: &mut Tenure| chunk.lose(lost.pages(pages));
            self.take_back(name, Tenure::new, lose, is_written)
        };
        let mut ways = vec![
            older(DONT_NEED, Plain::dont_need as fn(usize) -> Result<Plain>).baseline(),
            older("MADV_FREE, written again", Plain::free),
            tenure(NOTHING, Lost::Nothing, false).tenure(),
        ];
        // Of few pages, some are all.
        if self.len >= 16 * page_size() {
            ways.push(tenure("tenure, one page purged", Lost::OnePage, false));
            ways.push(tenure(SCATTERED, Lost::Each8th, false));
        }
        ways.push(tenure(ALL, Lost::All, false));
        ways.push(tenure("the same, written again", Lost::All, true));
        ways
    }

    fn make<C: Chunk>(self, new: fn(usize) -> Result<C>) -> Result<Vec<C>> {
        let filled = || {
            let mut chunk = new(self.len)?;
            chunk.bytes()?.fill(OLD);
            Ok(chunk)
        };
        (0..self.count).map(|_| filled()).collect()
    }

    fn offer<C: Chunk + 'static>(self, name: &'static str, new: fn(usize) -> Result<C>) -> Way {
        Way::new(
            name,
            move || Ok((self.make(new)?, AtOnce::begin())),
            move |(mut chunks, _at_once), recorder| {
                self.time(recorder, || chunks.iter_mut().try_for_each(C::offer))?;
                Ok(chunks)
            },
            |mut chunks, _| {
                for chunk in &mut chunks {
                    let contents = chunk.take_back()?;
                    check(chunk, &contents)?;
                }
                drop(chunks);
                Ok(tenure::drain(None)?)
            },
        )
    }

    fn take_back<C: Chunk + 'static>(
        self,
        name: &'static str,
        new: fn(usize) -> Result<C>,
        lose: impl Fn(&mut C) -> Result<()> + 'static,
        is_written: bool,
    ) -> Way {
        Way::new(
            name,
            move || {
                let mut chunks = self.make(new)?;
                let at_once = AtOnce::begin();
                chunks.iter_mut().try_for_each(C::offer)?;
                drop(at_once);
                chunks.iter_mut().try_for_each(&lose)?;
                Ok(chunks)
            },
            move |chunks, recorder| {
                let take_back = |mut chunk: C| {
                    let contents = chunk.take_back()?;
                    if is_written {
                        touch::write_each_page(chunk.bytes()?, |_| WRITTEN);
                    }
                    Ok((chunk, contents))
                };
                let all = || chunks.into_iter().map(take_back).collect();
                self.time(recorder, all)
            },
            move |taken: Vec<TakenBack<C>>, _| {
                for (mut chunk, contents) in taken {
                    if is_written {
                        put_first_bytes_back(chunk.bytes()?)?;
                    }
                    check(&mut chunk, &contents)?;
                }
                Ok(tenure::drain(None)?)
            },
        )
    }

    fn time<T>(self, recorder: &mut Recorder<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (answer, seconds) = recorder.measure(work);
        recorder.record(TIME, Unit::Seconds, seconds / self.count as f64);
        answer
    }
}

fn check(chunk: &mut impl Chunk, contents: &Contents) -> Result<()> {
    chunk.settle()?;
    chunk::check(chunk.bytes()?, contents, OLD)
}

/// Looks at what was written, and puts what stands beside it in its place.
fn put_first_bytes_back(bytes: &mut [u8]) -> Result<()> {
    for page in bytes.chunks_mut(page_size()) {
        ensure!(page[0] == WRITTEN, "what was written is not there");
        page[0] = page[1];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_as_much_as_is_said() {
        let lost = |lost: Lost| lost.pages(20).collect::<Vec<_>>();
        assert!(lost(Lost::Nothing).is_empty());
        assert_eq!(lost(Lost::OnePage), [10]);
        assert_eq!(lost(Lost::Each8th), [0, 8, 16]);
        assert_eq!(lost(Lost::All).len(), 20);
    }

    #[test]
    fn a_byte_that_was_not_written_is_seen() {
        let mut bytes = vec![OLD; 2 * page_size()];
        bytes[0] = WRITTEN;
        put_first_bytes_back(&mut bytes[..page_size()]).unwrap();
        assert_eq!(bytes[0], OLD);
        put_first_bytes_back(&mut bytes).unwrap_err();
    }
}
