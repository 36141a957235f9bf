//! Giving contents or addresses up.

use std::mem;

use tenure::{Error, FreePolicy, PageRange};

use super::{After, Part, Tools};
use crate::soak::{
    model::Wrong,
    slot::{Body, Slot},
    step::{End, Kind, kept},
};

impl Tools<'_> {
    pub fn free(
        &mut self,
        slot: &mut Slot,
        part: Part,
        policy: FreePolicy,
    ) -> Result<After, Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        let is_whole = part == (0, slot.pages.len());
        if is_whole && refused.is_none() && matches!(slot.body, Body::Mapping(_)) {
            return self.free_whole(slot, policy);
        }
        // SAFETY: what the range holds is known to be undefined from here on, and is
        // not borrowed.
        let answer = unsafe { slot.part(part.0, part.1).free(policy) };
        if self.expect_or(answer, refused)?.is_some() {
            Self::freed(slot, part, policy);
        }
        Ok(After::Kept)
    }

    fn freed(slot: &mut Slot, part: Part, policy: FreePolicy) {
        match policy {
            FreePolicy::Eager => slot.emptied(part),
            _ => slot.known(part).iter_mut().for_each(|page| page.freed()),
        }
    }

    /// A mapping as a whole, which is taken back at once.
    fn free_whole(&mut self, slot: &mut Slot, policy: FreePolicy) -> Result<After, Wrong> {
        let range = slot.range();
        let Body::Mapping(mapping) = mem::replace(&mut slot.body, Body::Range(range)) else {
            unreachable!("looked at before");
        };
        let given_up = mapping.free(policy).map_err(Error::from);
        let Some(given_up) = self.expect(given_up, &[])? else {
            return Ok(After::Gone);
        };
        let all = (0, slot.pages.len());
        Self::freed(slot, all, policy);
        match given_up.take_back() {
            Ok(mapping) => slot.body = Body::Mapping(mapping),
            Err(refused) => {
                self.expect::<()>(Err(refused.error), &["no_memory"])?;
                drop(refused.value);
                return Ok(After::Gone);
            }
        }
        slot.check(all, self.board)?;
        for page in &mut slot.pages {
            (page.lazy, page.own) = (false, true);
        }
        Ok(After::Kept)
    }

    pub fn lazy_free(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        // SAFETY: as for `free`.
        let answer = unsafe { slot.part(part.0, part.1).lazy_free() };
        if self.expect_or(answer, refused)?.is_some() {
            Self::freed(slot, part, FreePolicy::Lazy);
        }
        Ok(())
    }

    pub fn discard(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let is_private = !slot.kind.is_shared();
        let refused = Self::refusal(slot, part, is_private);
        // SAFETY: the contents are given up, and nothing borrows them.
        let answer = unsafe { slot.part(part.0, part.1).discard() };
        if self.expect_or(answer, refused)?.is_some() {
            slot.emptied(part);
        }
        slot.check(part, self.board)
    }

    pub fn punch(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_shared());
        // SAFETY: as for `discard`; no child uses it while its parent goes on.
        let answer = unsafe { slot.part(part.0, part.1).punch() };
        let may_be_refused = slot.kind == Kind::File && refused.is_none();
        let punched = match may_be_refused {
            // Some file systems have no holes.
            true => self.expect(answer, &["unsupported"])?,
            false => self.expect_or(answer, refused)?,
        };
        if punched.is_some() {
            slot.emptied(part);
        }
        slot.check(part, self.board)
    }

    /// Unmaps pages; of what is left the longer piece is kept.
    pub fn cut(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let count = slot.pages.len();
        let (first, kept) = kept(count, part.0, part.1);
        if kept == count {
            return Ok(());
        }
        let middle = slot.part(part.0, part.1);
        let rest: Vec<PageRange> = [(0, part.0), (part.0 + part.1, count - part.0 - part.1)]
            .into_iter()
            .filter(|&piece| piece != (first, kept) && piece.1 > 0)
            .map(|(first, count)| slot.part(first, count))
            .collect();
        slot.cut((first, kept));
        // SAFETY: nothing borrows it, and it belongs to no mapping any more.
        self.expect(unsafe { middle.munmap() }, &[])?;
        slot.check((0, kept), self.board)?;
        for piece in rest {
            // SAFETY: as above.
            self.expect(unsafe { piece.munmap() }, &[])?;
        }
        slot.check((0, kept), self.board)
    }

    pub fn end(&self, slot: Slot, end: End) -> Result<(), Wrong> {
        let answer = match slot.body {
            Body::Mapping(mapping) => match end {
                End::Munmap => mapping.munmap().map_err(Error::from),
                End::Now => mapping.release_now().map_err(Error::from),
                End::Drop => {
                    drop(mapping);
                    Ok(())
                }
            },
            // SAFETY: nothing borrows it, and it belongs to no mapping.
            Body::Range(range) => unsafe { range.munmap() },
            Body::Buffer(buffer) => {
                drop(buffer);
                Ok(())
            }
        };
        self.expect(answer, &[]).map(drop)
    }
}
