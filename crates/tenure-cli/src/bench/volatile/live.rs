//! Pages that can be marked volatile, and others that are volatile beside them.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use tenure::{Features, HugePages, Mapping, Outcome, PageRange, VolatileArena, VolatileBuffer};

use super::chunk::{self, Contents};

/// How many pages are marked and unmarked in turn.
pub const OWN: usize = 1_000;

/// A page that can be marked and unmarked.
pub trait Page: Sized + Send {
    /// What the pages are part of, for as long as they are in use.
    type Memory;
    /// Makes so many pages, in order of address.
    fn make(count: usize) -> Result<(Vec<Self>, Self::Memory)>;
    /// Makes it volatile.
    fn mark(&mut self) -> Result<()>;
    /// Ends that.
    fn unmark(&mut self) -> Result<Outcome>;
    /// Returns the bytes of a page that is not volatile.
    fn bytes(&mut self) -> Result<&mut [u8]>;

    /// Fills it with what it is expected to hold.
    fn fill(&mut self) -> Result<()> {
        self.bytes()?.fill(PATTERN);
        Ok(())
    }
}

/// A page with a word of its own. All are of one arena, for there are more than
/// the kernel has mappings for.
pub struct Handle(VolatileBuffer);

impl Page for Handle {
    type Memory = VolatileArena;

    fn make(count: usize) -> Result<(Vec<Self>, VolatileArena)> {
        let page = tenure::page_size();
        let arena = VolatileArena::new(count * page)?;
        let pages = (0..count).map(|_| Ok(Self(arena.buffer(page)?)));
        Ok((pages.collect::<Result<_>>()?, arena))
    }

    fn mark(&mut self) -> Result<()> {
        self.0.mark_volatile();
        Ok(())
    }

    fn unmark(&mut self) -> Result<Outcome> {
        Ok(self.0.mark_nonvolatile()?)
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.0.as_mut_slice()?)
    }
}

/// A page of plain memory.
pub struct Plain(PageRange);

impl Page for Plain {
    type Memory = Mapping;

    fn make(count: usize) -> Result<(Vec<Self>, Mapping)> {
        let page = tenure::page_size();
        let mapping = Mapping::anonymous(count * page).huge_pages(HugePages::Never);
        let mapping = mapping.map()?;
        let start = mapping.range().start();
        let pages = (0..count).map(|index| Ok(Self(PageRange::new(start + index * page, page)?)));
        Ok((pages.collect::<Result<_>>()?, mapping))
    }

    fn mark(&mut self) -> Result<()> {
        // SAFETY: the page is this one's alone, and nothing borrows from it but
        // what `bytes` returns, which ends before this.
        Ok(unsafe { self.0.mark_volatile() }?)
    }

    fn unmark(&mut self) -> Result<Outcome> {
        // SAFETY: the page is this one's alone.
        Ok(unsafe { self.0.mark_nonvolatile() }?)
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        // SAFETY: a page of a mapping that can be written; the caller has ended
        // its being volatile; borrowed for as long as `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) })
    }
}

/// Pages to be marked and unmarked among others that are volatile.
pub struct Live<P: Page> {
    /// Pages that are not volatile, all over the memory, in no order.
    pub own: Vec<P>,
    others: Vec<P>,
    /// Dropped last.
    _memory: P::Memory,
}

impl<P: Page> Live<P> {
    /// Makes so many others. One half of them the kernel has been offered; the
    /// other half is marked just now.
    pub fn make(others: usize) -> Result<Self> {
        let (mut pages, memory) = P::make(OWN + others)?;
        pages.iter_mut().try_for_each(P::fill)?;
        let mut live = Self {
            own: Vec::with_capacity(OWN),
            others: Vec::with_capacity(others),
            _memory: memory,
        };
        for (place, page) in pages.into_iter().enumerate() {
            let is_own = place * OWN % (OWN + others) < OWN;
            if is_own {
                &mut live.own
            } else {
                &mut live.others
            }
            .push(page);
        }
        Rng::with_seed(1).shuffle(&mut live.own);
        // What is marked for the first time is looked at; that is not measured.
        for page in &mut live.own {
            page.mark()?;
            let _ = page.unmark()?;
        }
        let (first, second) = live.others.split_at_mut(others / 2);
        first.iter_mut().try_for_each(P::mark)?;
        wait_until_offered(first.len())?;
        second.iter_mut().try_for_each(P::mark)?;
        Ok(live)
    }

    /// Fails unless all own pages, and of the others about as many, hold what they
    /// are said to.
    pub fn check(mut self) -> Result<()> {
        let step = (self.others.len() / OWN).max(1);
        let others = self.others.iter_mut().step_by(step);
        for page in self.own.iter_mut().chain(others) {
            let contents = match page.unmark()? {
                Outcome::Intact => Contents::Intact,
                Outcome::Purged(runs) => Contents::Purged(runs),
            };
            chunk::check(page.bytes()?, &contents, PATTERN)?;
        }
        Ok(())
    }
}

const PATTERN: u8 = 7;

/// Waits for the keeper to offer so many pages.
fn wait_until_offered(pages: usize) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let wanted = (pages * tenure::page_size()) as u64;
    let start = Instant::now();
    let can_offer = Features::get().sigbus_on_missing();
    while can_offer && tenure::stats().offered_bytes < wanted {
        ensure!(
            start.elapsed() < PATIENCE,
            "{pages} pages are volatile and not offered yet"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_all<P: Page>() {
        for others in [0, 1, 1_500] {
            let live = Live::<P>::make(others).unwrap();
            assert_eq!((live.own.len(), live.others.len()), (OWN, others));
            live.check().unwrap();
        }
        let mut live = Live::<P>::make(2).unwrap();
        live.own[3].bytes().unwrap()[5] = 0;
        live.check().unwrap_err();
    }

    #[test]
    fn handles_hold_what_they_are_said_to() {
        check_all::<Handle>();
    }

    #[test]
    fn ranges_hold_what_they_are_said_to() {
        check_all::<Plain>();
    }
}
