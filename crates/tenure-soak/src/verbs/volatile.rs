//! The operations on volatile memory.

use std::mem;

use tenure::{page_size, volatile::VolatileOptions};

use super::Part;
use super::Tools;
use crate::model::{Checked, Seen, mismatch};
use crate::slot::{Body, Slot};
use crate::step::Count;

impl Tools<'_> {
    pub fn mark(&self, slot: &mut Slot, part: Part, options: VolatileOptions) -> Checked {
        if let Body::Buffer(buffer) = &mut slot.body {
            buffer.mark_volatile_with(options);
            slot.pages.iter_mut().for_each(|page| page.volatile = true);
            return Ok(());
        }
        // SAFETY: the soak accesses volatile pages through the kernel only, and unmaps
        // the range through tenure only.
        let answer = unsafe { slot.part(part).mark_volatile_with(options) };
        let refusal = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        let marked = match refusal {
            // tenure does not check pages again that are or were volatile.
            Some("locked") => self.expect(answer, &["locked"])?,
            refusal => self.expect_refusal(answer, refusal)?,
        };
        if marked.is_some() {
            let pages = slot.pages_of(part).iter_mut();
            pages.for_each(|page| page.volatile = true);
        }
        Ok(())
    }

    pub fn unmark(&self, slot: &mut Slot, part: Part) -> Checked {
        let (all, range) = (slot.all(), slot.part(part));
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (all, buffer.mark_nonvolatile()),
            // SAFETY: the range is this thread's.
            _ => (part, unsafe { range.mark_nonvolatile() }),
        };
        let Some(outcome) = self.expect(answer, &[])? else {
            return Ok(());
        };
        let purged = slot.unmarked(part, &outcome, self.board)?;
        if mem::take(&mut slot.is_not_intact) && purged == 0 {
            return mismatch("a buffer that was not intact", "purged pages", "intact");
        }
        Ok(())
    }

    pub fn purge(&self, slot: &mut Slot, part: Part) -> Checked {
        let (all, range) = (slot.all(), slot.part(part));
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (all, buffer.purge()),
            // SAFETY: the range is this thread's.
            _ => (part, unsafe { range.purge() }),
        };
        let is_locked = slot.any(part, |page| page.volatile && page.lock.is_some());
        let allowed: &[&str] = if is_locked { &["locked", "other"] } else { &[] };
        // A call that fails may have purged some pages.
        if self.expect_release(answer, allowed)?.is_some() {
            slot.pages_of(part).iter_mut().for_each(|page| page.purge());
        }
        Ok(())
    }

    pub fn read_volatile(&self, slot: &mut Slot, (first, count): Part) -> Checked {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let mut bytes = vec![0; count.min(64) * page_size()];
        let answer = buffer.read_volatile_into(first * page_size(), &mut bytes);
        let may_be_purged = buffer.is_volatile() && slot.any(slot.all(), |page| page.backed);
        let allowed: &[&str] = if may_be_purged { &["purged"] } else { &[] };
        if self.expect(answer, allowed)?.is_none() {
            return Ok(());
        }
        for (index, page) in (first..).zip(bytes.chunks_exact(page_size())) {
            slot.observe(index, Seen::Bytes(page))?;
            self.board.add(Count::PagesChecked, 1);
        }
        Ok(())
    }

    pub fn is_intact(&self, slot: &mut Slot) -> Checked {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let is_volatile = buffer.is_volatile();
        let Some(is_intact) = self.expect(buffer.is_intact(), &[])? else {
            return Ok(());
        };
        let is_purged = slot.is_not_intact || slot.any(slot.all(), |page| page.purged);
        if is_intact && is_purged || !is_intact && !is_volatile {
            return mismatch("is_intact", !is_intact, is_intact);
        }
        slot.is_not_intact |= !is_intact;
        Ok(())
    }
}
