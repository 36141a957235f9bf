//! One thread: does what its plan says, and stays within the memory that it may
//! have.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::Ordering::{Acquire, Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tenure::{LockModes, PageRange, Priority, VolatileArena, lock_all, stats, unlock_all};

use super::{
    board::{Board, Count},
    child,
    model::Wrong,
    plan::Plan,
    ready::{Cache, Ready},
    slot::Slot,
    step::{End, Kind, Step, Verb},
    verbs::{After, Tools, may_lock_anything},
};

/// Held for writing by who locks all memory: that would change what others are
/// answered, and what the kernel can take.
pub static GATE: RwLock<()> = RwLock::new(());

/// Held by who has a child: one at a time, for what its parent writes meanwhile is
/// there twice.
pub static CHILD: Mutex<()> = Mutex::new(());

/// How many operations each thread does at least, unless something is wrong: those
/// that the sequence's digest is of, each kind of them among it.
const LEAST_STEPS: u64 = 40;

/// What all threads share.
pub struct Shared {
    pub board: &'static Board,
    pub seed: u64,
    pub arena: VolatileArena,
    pub cache: Cache,
    /// What of its memory a thread may have that cannot be taken.
    pub firm_pages: usize,
    /// How much may wait to be offered, or to be freed, in all; nothing where there
    /// is no limit.
    pub waiting_bytes: Option<u64>,
}

pub struct Worker<'a> {
    number: usize,
    shared: &'a Shared,
    pub tools: Tools<'a>,
    plan: Plan,
    pub slots: Vec<Option<Slot>>,
    /// Of each slot, how many pages the kernel cannot take.
    firm: Vec<usize>,
    pub ready: Ready<'a>,
    /// How often all locks of the process have been cleared, as far as is known.
    cleared: u64,
    /// How much could not be offered, as far as is known.
    not_offered_bytes: u64,
}

/// How often all locks have been cleared; under the gate.
static CLEARED: Mutex<u64> = Mutex::new(0);

impl<'a> Worker<'a> {
    pub fn new(shared: &'a Shared, number: usize) -> Self {
        let plan = Plan::new(shared.seed, number);
        let tools = Tools {
            board: shared.board,
            stamps: Rng::with_seed(shared.seed ^ (number as u64) << 32),
            may_lock_anything: may_lock_anything(),
        };
        Self {
            number,
            shared,
            tools,
            slots: plan.slots().map(|_| None).collect(),
            firm: plan.slots().map(|_| 0).collect(),
            plan,
            ready: Ready::new(number, &shared.cache),
            cleared: *guard(&CLEARED),
            not_offered_bytes: 0,
        }
    }

    /// Goes on until it is told to stop, or has done so many operations.
    pub fn run(mut self, most: u64) {
        let place = &self.shared.board.places[self.number];
        place.begun.store(0, Relaxed);
        place.thread.store(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .cast_unsigned(),
            Relaxed,
        );
        let mut done = self.fill();
        while done.is_ok() {
            let step = self.plan.step();
            let is_time = self.shared.board.stop.load(Acquire)
                && (step.number >= LEAST_STEPS || self.shared.board.failure().is_some());
            if is_time || step.number >= most {
                break;
            }
            done = self.take(step);
        }
        let done = done.and_then(|()| self.end());
        place.thread.store(0, Relaxed);
        if let Err(wrong) = done {
            self.shared.board.fail(&self.who(), &wrong);
        }
    }

    pub fn who(&self) -> String {
        format!("thread {}", self.number)
    }

    /// Makes the first memory, and lets all of it go that can be taken.
    fn fill(&mut self) -> Result<(), Wrong> {
        let sizes: Vec<_> = self.plan.slots().collect();
        for (index, (kind, page_count)) in sizes.into_iter().enumerate() {
            self.fill_one(index, kind, page_count)?;
            self.wait()?;
        }
        Ok(())
    }

    fn fill_one(&mut self, index: usize, kind: Kind, page_count: usize) -> Result<(), Wrong> {
        let _open = GATE.read();
        self.make(index, kind, page_count)?;
        let Some(slot) = &mut self.slots[index] else {
            return Ok(());
        };
        slot.write((0, page_count), &mut self.tools.stamps)?;
        self.tidy(index)
    }

    fn make(&mut self, index: usize, kind: Kind, pages: usize) -> Result<(), Wrong> {
        let made = Slot::new(kind, pages, &self.shared.arena, &mut self.tools.stamps);
        self.slots[index] = self.tools.expect(made, &["arena_full"])?;
        self.publish(index);
        Ok(())
    }

    /// Tells the others where memory is that they may ask the kernel to take.
    fn publish(&self, index: usize) {
        let range = self.slots[index].as_ref().map(Slot::range);
        let (start, len) = &self.shared.board.places[self.number].ranges[index];
        len.store(0, Relaxed);
        start.store(range.map_or(0, PageRange::start), Relaxed);
        len.store(range.map_or(0, PageRange::len), Relaxed);
    }

    fn take(&mut self, step: Step) -> Result<(), Wrong> {
        self.wait()?;
        let board = self.shared.board;
        board.begin(self.number, &step);
        board.verbs[step.verb.index()].fetch_add(1, Relaxed);
        if step.number < LEAST_STEPS {
            // The same from all threads, in whatever order they come.
            board.add(Count::Digest, digest(self.number, &step));
        }
        if let Verb::LockAll(what, mode) = step.verb {
            return self.lock_all(what, mode);
        }
        let _open = GATE.read();
        self.notice_cleared_locks();
        match step.verb {
            Verb::Fork { steps } => child::fork(self, &step, steps)?,
            Verb::Cache { key, len, what } => {
                self.ready.use_cache(&mut self.tools, key, len, what)?;
            }
            Verb::LockedFile { renew } => self.ready.use_file(&mut self.tools, renew)?,
            Verb::Secret { len, what } => self.ready.use_secret(&mut self.tools, len, what)?,
            Verb::Delay { micros } => tenure::set_hand_over_delay(Duration::from_micros(micros)),
            Verb::Drain => {
                let drained = tenure::drain(Some(Duration::from_secs(50)));
                self.tools.expect(drained, &[])?;
            }
            Verb::PurgeAll => {
                // What was locked after it was marked cannot be purged.
                self.tools
                    .expect(tenure::purge_all(), &["locked", "other"])?;
                board.add(Count::PurgeAll, 1);
            }
            _ => self.use_memory(&step)?,
        }
        self.tidy(step.slot)
    }

    /// Does an operation on a slot's memory.
    pub fn use_memory(&mut self, step: &Step) -> Result<(), Wrong> {
        let part = (step.first, step.count);
        if let Verb::Renew { end, page_count } = step.verb {
            let (kind, before) = match self.slots[step.slot].take() {
                Some(slot) => (slot.kind, Some(slot)),
                None => (self.kind(step.slot), None),
            };
            if let Some(mut slot) = before {
                slot.check((0, slot.pages.len()), self.shared.board)?;
                self.tools.end(slot, end)?;
            }
            return self.make(step.slot, kind, page_count);
        }
        let Some(slot) = &mut self.slots[step.slot] else {
            return Ok(());
        };
        let tools = &mut self.tools;
        match step.verb {
            Verb::Write => {
                if slot.kind.is_buffer() {
                    tools.unmark(slot, part)?;
                }
                slot.write(part, &mut tools.stamps)?;
                slot.check(part, tools.board)?;
            }
            Verb::Check { direct: true } => slot.check_directly(part, tools.board)?,
            Verb::Check { direct: false } => slot.check(part, tools.board)?,
            Verb::Populate(how) => tools.populate(slot, part, how)?,
            Verb::Lock(mode) => tools.lock(slot, part, mode)?,
            Verb::Unlock(modes) => tools.unlock(slot, part, modes)?,
            Verb::Free(policy) => {
                if tools.free(slot, part, policy)? == After::Gone {
                    self.slots[step.slot] = None;
                    self.publish(step.slot);
                }
            }
            Verb::LazyFree => tools.lazy_free(slot, part)?,
            Verb::Reuse => slot.part(part.0, part.1).reuse(),
            Verb::Mark(priority) => tools.mark(slot, part, priority, false)?,
            Verb::MarkNow(priority) => tools.mark(slot, part, priority, true)?,
            Verb::Unmark => tools.unmark(slot, part)?,
            Verb::ReadVolatile => tools.read_volatile(slot, part)?,
            Verb::IsWhole => tools.is_whole(slot)?,
            Verb::Purge => tools.purge(slot, part)?,
            Verb::Discard => tools.discard(slot, part)?,
            Verb::Punch => tools.punch(slot, part)?,
            Verb::PageOut => tools.page_out(slot, part),
            Verb::Residency => {
                tools.residency(slot, part)?;
                stats();
            }
            Verb::Cut => {
                tools.cut(slot, part)?;
                self.publish(step.slot);
            }
            _ => unreachable!("not about memory: {step:?}"),
        }
        Ok(())
    }

    fn kind(&self, slot: usize) -> Kind {
        let kind = self.plan.slots().nth(slot).map(|(kind, _)| kind);
        kind.unwrap_or_else(|| unreachable!("a slot of the plan"))
    }

    /// With everybody else held up: locks of the whole process, and none after it.
    fn lock_all(&mut self, what: tenure::LockAll, mode: tenure::LockMode) -> Result<(), Wrong> {
        let _closed = GATE.write();
        let may_be: &[&str] = match self.tools.may_lock_anything {
            true => &[],
            false => &["process_lock_limit"],
        };
        let locked = self.tools.expect(lock_all(what, mode), may_be)?.is_some();
        if locked && what != tenure::LockAll::Current {
            // New memory is locked from the start.
            let mapping = tenure::Mapping::anonymous(64 << 10).map();
            let may_be: &[&str] = match self.tools.may_lock_anything {
                true => &[],
                false => &["process_lock_limit"],
            };
            if let Some(mapping) = self.tools.expect(mapping, may_be)? {
                // SAFETY: it is nobody else's, and dropped below.
                let freed = unsafe { mapping.range().lazy_free() };
                if !matches!(freed, Err(tenure::Error::Locked { .. })) {
                    let found = format!("{freed:?}");
                    return Err(Wrong::new("memory mapped after lock_all", "locked", found));
                }
            }
        }
        self.tools.expect(unlock_all(LockModes::ALL), &[])?;
        *guard(&CLEARED) += 1;
        Ok(())
    }

    /// With the gate held open.
    fn notice_cleared_locks(&mut self) {
        let cleared = *guard(&CLEARED);
        if std::mem::replace(&mut self.cleared, cleared) != cleared {
            self.forget_locks();
        }
    }

    pub fn forget_locks(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.pages.iter_mut().for_each(|page| page.lock = None);
        }
    }

    /// Lets memory go until there is no more than this thread may have that the
    /// kernel cannot take. `changed` is the slot that may have more of it.
    fn tidy(&mut self, changed: usize) -> Result<(), Wrong> {
        self.firm[changed] = self.slots[changed].as_ref().map_or(0, Slot::firm_pages);
        while self.firm.iter().sum::<usize>() > self.shared.firm_pages {
            // A few MiB of shared memory and files always fit.
            let is_takeable = |slot: &usize| {
                self.slots[*slot]
                    .as_ref()
                    .is_some_and(|slot| !slot.kind.is_file())
            };
            let takeable = (0..self.slots.len()).filter(is_takeable);
            let most = takeable
                .max_by_key(|&slot| self.firm[slot])
                .unwrap_or(changed);
            let Some(slot) = &mut self.slots[most] else {
                return Ok(());
            };
            let all = (0, slot.pages.len());
            if !slot.kind.is_buffer() {
                self.tools.unlock(slot, all, LockModes::ALL)?;
            }
            self.tools.mark(slot, all, Priority::Normal, false)?;
            self.firm[most] = 0;
        }
        Ok(())
    }

    /// What has been marked and not yet offered the kernel cannot take, nor what
    /// is still to be freed: on a busy machine others may need a while for it.
    fn wait(&mut self) -> Result<(), Wrong> {
        let Some(most) = self.shared.waiting_bytes else {
            return Ok(());
        };
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let stats = stats();
            let waiting = stats.volatile_bytes.saturating_sub(stats.offered_bytes);
            let is_too_much = waiting > most || stats.pending_release_bytes > most;
            if !is_too_much || Instant::now() >= end {
                return Ok(());
            }
            let not_offered = stats.not_offered_bytes;
            if std::mem::replace(&mut self.not_offered_bytes, not_offered) != not_offered {
                self.mark_again()?;
            }
            self.shared.board.add(Count::Waits, 1);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A range that was to be offered just when everything was locked is not tried
    /// again before it is marked again.
    fn mark_again(&mut self) -> Result<(), Wrong> {
        let _open = GATE.read();
        self.notice_cleared_locks();
        let slots = self.slots.iter_mut().flatten();
        for slot in slots.filter(|slot| slot.kind.is_private_anonymous()) {
            for part in slot.volatile_parts() {
                self.tools.mark(slot, part, Priority::Normal, false)?;
            }
        }
        Ok(())
    }

    /// Looks at everything once more, and gives it up.
    fn end(&mut self) -> Result<(), Wrong> {
        let _open = GATE.read();
        self.ready.check()?;
        for index in 0..self.slots.len() {
            if let Some(mut slot) = self.slots[index].take() {
                slot.check((0, slot.pages.len()), self.shared.board)?;
                self.publish(index);
                self.tools.end(slot, End::Drop)?;
            }
        }
        Ok(())
    }
}

pub fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// FNV-1a of an operation.
fn digest(thread: usize, step: &Step) -> u64 {
    let text = format!("{thread} {step:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
