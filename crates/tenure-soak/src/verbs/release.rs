//! The operations that give up contents or addresses.

use std::mem;

use tenure::{Error, lazy_free::FreePolicy};

use super::Part;
use super::Tools;
use crate::model::Checked;
use crate::slot::{Body, Slot};
use crate::step::{End, Kind, kept};

impl Tools<'_> {
    /// Returns whether the slot still has memory.
    pub fn free(&mut self, slot: &mut Slot, part: Part, policy: FreePolicy) -> Checked<bool> {
        let refusal = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        if part == slot.all() && refusal.is_none() && matches!(slot.body, Body::Mapping(_)) {
            return self.free_mapping(slot, policy);
        }
        // SAFETY: nothing borrows the contents, and their models become undefined here.
        let answer = unsafe { slot.part(part).free(policy) };
        if self.expect_refusal(answer, refusal)?.is_some() {
            freed(slot, part, policy);
        }
        Ok(true)
    }

    /// Frees a whole mapping and reuses it at once.
    fn free_mapping(&mut self, slot: &mut Slot, policy: FreePolicy) -> Checked<bool> {
        let range = slot.range();
        let Body::Mapping(mapping) = mem::replace(&mut slot.body, Body::Range(range)) else {
            unreachable!("the caller checked that it is a mapping");
        };
        let freed_mapping = mapping.free(policy).map_err(Error::from);
        let Some(freed_mapping) = self.expect_release(freed_mapping, &[])? else {
            return Ok(false);
        };
        freed(slot, slot.all(), policy);
        match freed_mapping.reuse() {
            Ok(mapping) => slot.body = Body::Mapping(mapping),
            Err(failed) => {
                self.expect::<()>(Err(failed.error), &["no_memory"])?;
                drop(failed.value);
                return Ok(false);
            }
        }
        slot.check_all(self.board)?;
        for page in &mut slot.pages {
            (page.lazily_free, page.backed) = (false, true);
        }
        Ok(true)
    }

    pub fn lazy_free(&self, slot: &mut Slot, part: Part) -> Checked {
        let refusal = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        // SAFETY: nothing borrows the contents, and their models become undefined here.
        let answer = unsafe { slot.part(part).lazy_free() };
        if self.expect_refusal(answer, refusal)?.is_some() {
            freed(slot, part, FreePolicy::Lazy);
        }
        Ok(())
    }

    pub fn discard(&self, slot: &mut Slot, part: Part) -> Checked {
        let refusal = Self::refusal(slot, part, !slot.kind.is_shared());
        // SAFETY: nothing borrows the contents.
        let answer = unsafe { slot.part(part).discard() };
        if self.expect_refusal(answer, refusal)?.is_some() {
            slot.discarded(part);
        }
        slot.check(part, self.board)
    }

    pub fn punch(&self, slot: &mut Slot, part: Part) -> Checked {
        let refusal = Self::refusal(slot, part, slot.kind.is_shared());
        // SAFETY: nothing borrows the contents: a child that shares them has ended before
        // its parent goes on.
        let answer = unsafe { slot.part(part).punch() };
        let punched = match (slot.kind, refusal) {
            // Some file systems have no holes.
            (Kind::File, None) => self.expect_release(answer, &["unsupported"])?,
            (_, refusal) => self.expect_refusal(answer, refusal)?,
        };
        if punched.is_some() {
            slot.discarded(part);
        }
        slot.check(part, self.board)
    }

    /// Unmaps a part, and all but the longer piece of the rest.
    pub fn munmap_part(&self, slot: &mut Slot, part: Part) -> Checked {
        let count = slot.pages.len();
        let left = kept(count, part.0, part.1);
        if left == slot.all() {
            return Ok(());
        }
        let end = part.0 + part.1;
        let pieces = [part, (0, part.0), (end, count - end)];
        let pieces = pieces.map(|piece| (piece, slot.part(piece)));
        slot.cut(left);
        for (piece, range) in pieces {
            if piece != left && piece.1 > 0 {
                // SAFETY: nothing borrows the range, and no mapping owns it after `cut`.
                self.release(|| unsafe { range.munmap() })?;
                slot.check_all(self.board)?;
            }
        }
        Ok(())
    }

    pub fn end(&self, slot: Slot, end: End) -> Checked {
        let answer = match (slot.body, end) {
            (Body::Mapping(mapping), End::Munmap) => mapping.munmap().map_err(Error::from),
            (Body::Mapping(mapping), End::MunmapSync) => mapping.munmap_sync().map_err(Error::from),
            (Body::Mapping(mapping), End::Recycle) => mapping.recycle().map_err(Error::from),
            (Body::Range(range), End::Recycle) => {
                // SAFETY: nothing borrows the range, and no mapping owns it.
                return self.release(|| unsafe { range.recycle() });
            }
            (Body::Range(range), _) => {
                // SAFETY: nothing borrows the range, and no mapping owns it.
                return self.release(|| unsafe { range.munmap() });
            }
            (Body::Mapping(_) | Body::Buffer(_), _) => Ok(()),
        };
        self.expect_release(answer, &[]).map(drop)
    }
}

fn freed(slot: &mut Slot, part: Part, policy: FreePolicy) {
    match policy {
        FreePolicy::Eager => slot.discarded(part),
        _ => slot
            .pages_of(part)
            .iter_mut()
            .for_each(|page| page.lazy_free()),
    }
}
