//! Making contents volatile.

use std::mem;

use tenure::Priority;

use super::{Part, Tools};
use crate::soak::{
    board::Count,
    model::{Seen, Wrong},
    slot::{Body, Slot},
};

impl Tools<'_> {
    pub fn mark(
        &self,
        slot: &mut Slot,
        part: Part,
        priority: Priority,
        now: bool,
    ) -> Result<(), Wrong> {
        let range = slot.part(part.0, part.1);
        if let Body::Buffer(buffer) = &mut slot.body {
            buffer.mark_volatile_with(priority);
            slot.pages.iter_mut().for_each(|page| page.volatile = true);
            return Ok(());
        }
        let answer = match now {
            // SAFETY: what is volatile is only touched through the kernel, and the
            // range only unmapped through tenure.
            true => unsafe { range.mark_volatile_now(priority) },
            // SAFETY: as above.
            false => unsafe { range.mark_volatile_with(priority) },
        };
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        // What is volatile, or was before, is not looked at again.
        let marked = match refused {
            Some("locked") => self.expect(answer, &["locked"])?,
            refused => self.expect_or(answer, refused)?,
        };
        if marked.is_some() {
            slot.known(part)
                .iter_mut()
                .for_each(|page| page.volatile = true);
        }
        Ok(())
    }

    pub fn unmark(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let whole = (0, slot.pages.len());
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (whole, buffer.mark_nonvolatile()),
            // SAFETY: the range is this thread's.
            _ => (part, unsafe {
                slot.part(part.0, part.1).mark_nonvolatile()
            }),
        };
        let Some(outcome) = self.expect(answer, &[])? else {
            return Ok(());
        };
        let lost = slot.unmarked(part, &outcome, self.board)?;
        if mem::take(&mut slot.is_not_whole) && lost == 0 {
            return Err(Wrong::new(
                "a buffer that was not whole",
                "a loss",
                "intact",
            ));
        }
        Ok(())
    }

    pub fn purge(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let whole = (0, slot.pages.len());
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (whole, buffer.purge()),
            // SAFETY: as above.
            _ => (part, unsafe { slot.part(part.0, part.1).purge() }),
        };
        let is_locked = slot.has(part, |page| page.volatile && page.lock.is_some());
        let may_be: &[&str] = if is_locked { &["locked", "other"] } else { &[] };
        // Of an error some may be done.
        if self.expect(answer, may_be)?.is_some() {
            slot.known(part).iter_mut().for_each(|page| page.purged());
        }
        Ok(())
    }

    pub fn read_volatile(&self, slot: &mut Slot, (first, count): Part) -> Result<(), Wrong> {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let count = count.min(64);
        let mut bytes = vec![0; count * tenure::page_size()];
        let answer = buffer.read_volatile_into(first * tenure::page_size(), &mut bytes);
        let may_be: &[&str] = match buffer.is_volatile() {
            true if slot.pages.iter().any(|page| page.own) => &["purged"],
            _ => &[],
        };
        if self.expect(answer, may_be)?.is_none() {
            return Ok(());
        }
        for (index, page) in (first..).zip(bytes.chunks_exact(tenure::page_size())) {
            let at = slot.part(index, 1).start();
            let looked = slot.pages[index].look(Seen::Bytes(page));
            looked.map_err(|wrong| Wrong {
                page: Some(at),
                ..wrong
            })?;
        }
        self.board.add(Count::PagesChecked, count as u64);
        Ok(())
    }

    pub fn is_whole(&self, slot: &mut Slot) -> Result<(), Wrong> {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let is_volatile = buffer.is_volatile();
        let Some(is_whole) = self.expect(buffer.is_whole(), &[])? else {
            return Ok(());
        };
        let known_gone = slot.pages.iter().any(|page| page.gone);
        if is_whole && (known_gone || slot.is_not_whole) || !is_whole && !is_volatile {
            return Err(Wrong::new("is_whole", !is_whole, is_whole));
        }
        slot.is_not_whole |= !is_whole;
        Ok(())
    }
}
