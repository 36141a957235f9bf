//! A thread of the soak: does what its plan decides, and bounds the memory that it holds
//! and that the kernel cannot reclaim.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{LockResult, Mutex, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use std::{mem, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tenure::lock::{LockFlags, LockScope, lock_all, unlock_all};
use tenure::pool::{PoolOptions, configure};
use tenure::volatile::{VolatileOptions, purge_all, set_offer_delay};
use tenure::{Error, LockMode, Mapping, PageRange, VolatileArena, stats};

use super::admission;
use super::board::Board;
use super::child;
use super::descriptors::{OwnFiles, close_tenures};
use super::model::{Checked, mismatch};
use super::plan::Plan;
use super::ready::{Cache, Ready};
use super::shortage::{limit_data, run_out_of_descriptors};
use super::slot::Slot;
use super::step::{Count, End, Step, Verb};
use super::verbs::{self, Scale, Tools};

/// `lock_all` takes it for writing, because locking all memory changes the answers that
/// other threads get and what the kernel can reclaim.
pub static GATE: RwLock<()> = RwLock::new(());

/// How many threads wait to take it for writing: all others wait for them.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Takes [`GATE`] for writing. Operations that take long end soon meanwhile.
fn close_gate() -> LockResult<RwLockWriteGuard<'static, ()>> {
    WAITING.fetch_add(1, Relaxed);
    let closed = GATE.write();
    WAITING.fetch_sub(1, Relaxed);
    closed
}

/// Whether other threads wait for all operations under way.
pub fn is_gate_wanted() -> bool {
    WAITING.load(Relaxed) > 0
}

/// A thread takes it to fork: one child exists at a time, because pages that its parent
/// writes meanwhile exist twice.
pub static CHILD: Mutex<()> = Mutex::new(());

/// How often `unlock_all` has cleared the locks of all threads: those now, and those on
/// fault.
static UNLOCK_ALL_CALLS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The flags of these two.
const FLAGS: [LockFlags; 2] = [LockFlags::NOW, LockFlags::ON_FAULT];

/// How many operations each thread does at least, unless something is wrong. They include
/// every verb, and the digest covers them.
const MIN_STEPS: u64 = 40;

/// The state that all threads share.
pub struct Shared {
    pub board: &'static Board,
    pub seed: u64,
    pub arena: VolatileArena,
    pub cache: Cache,
    /// How many pages a thread may hold that the kernel cannot reclaim.
    pub max_unreclaimable_pages: usize,
    pub scale: Scale,
    /// How many bytes may wait to be offered, and how many to be freed; `None` without a
    /// memory limit.
    pub max_pending_bytes: Option<u64>,
}

pub struct Worker<'a> {
    number: usize,
    shared: &'a Shared,
    pub tools: Tools<'a>,
    plan: Plan,
    pub slots: Vec<Option<Slot>>,
    /// How many pages of each slot the kernel cannot reclaim.
    unreclaimable: Vec<usize>,
    pub ready: Ready<'a>,
    /// The files that it opened when it closed tenure's descriptors last.
    own_files: Option<OwnFiles>,
    cpus: Cpus,
    /// The value of UNLOCK_ALL_CALLS that the models reflect.
    seen_unlock_all_calls: [u64; 2],
    seen_offer_failed_bytes: u64,
}

impl<'a> Worker<'a> {
    pub fn new(shared: &'a Shared, number: usize) -> Self {
        let plan = Plan::new(shared.seed, number);
        Self {
            number,
            shared,
            tools: Tools::new(shared.board, shared.seed ^ (number as u64) << 32),
            slots: (0..plan.slots.len()).map(|_| None).collect(),
            unreclaimable: vec![0; plan.slots.len()],
            plan,
            ready: Ready::new(number, &shared.cache),
            own_files: None,
            cpus: Cpus::new(),
            seen_unlock_all_calls: UNLOCK_ALL_CALLS.each_ref().map(|calls| calls.load(Relaxed)),
            seen_offer_failed_bytes: 0,
        }
    }

    /// Works until the board says to stop, or `max_steps` are done.
    pub fn run(mut self, max_steps: u64) {
        let board = self.shared.board;
        let state = &board.threads[self.number];
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        state.begun.store(0, Relaxed);
        state.tid.store(tid.cast_unsigned(), Relaxed);
        let mut done = self.fill();
        while done.is_ok() {
            let step = self.plan.step();
            let may_stop = step.number >= MIN_STEPS || board.failure().is_some();
            if step.number >= max_steps || may_stop && board.stop.load(Acquire) {
                break;
            }
            done = self.perform(step);
        }
        let done = done.and_then(|()| self.end());
        state.tid.store(0, Relaxed);
        board.check(&self.name(), done);
    }

    pub fn name(&self) -> String {
        format!("thread {}", self.number)
    }

    /// Maps and writes all slots.
    fn fill(&mut self) -> Checked {
        for index in 0..self.slots.len() {
            {
                let _open = GATE.read();
                self.map(index)?;
                if let Some(slot) = &mut self.slots[index] {
                    slot.write(slot.all(), &mut self.tools.patterns)?;
                }
                self.bound_unreclaimable(index)?;
            }
            self.wait_for_pending()?;
        }
        Ok(())
    }

    fn map(&mut self, index: usize) -> Checked {
        let (kind, pages, _) = self.plan.slots[index];
        let slot = Slot::new(kind, pages, &self.shared.arena, &mut self.tools.patterns);
        self.slots[index] = self.tools.expect(slot, &["arena_full"])?;
        self.publish(index);
        Ok(())
    }

    /// Tells the thread that reclaims pages where the slot is.
    fn publish(&self, index: usize) {
        let range = self.slots[index].as_ref().map(Slot::range);
        let (start, len) = &self.shared.board.threads[self.number].ranges[index];
        len.store(0, Relaxed);
        start.store(range.map_or(0, PageRange::start), Relaxed);
        len.store(range.map_or(0, PageRange::len), Relaxed);
    }

    fn perform(&mut self, step: Step) -> Checked {
        self.wait_for_pending()?;
        let board = self.shared.board;
        board.begin(self.number, &step);
        board.verbs[step.verb.index()].fetch_add(1, Relaxed);
        if step.number < MIN_STEPS {
            // A sum does not depend on the order of the threads.
            board.digest.fetch_add(digest(self.number, &step), Relaxed);
        }
        self.tools.begin();
        match step.verb {
            Verb::LockProcess(scope, mode) => return self.lock_all(scope, mode),
            Verb::UnlockProcess(flags, from_future) => return self.unlock_all(flags, from_future),
            Verb::CloseDescriptors => return self.close_descriptors(),
            _ => {}
        }
        let _open = GATE.read();
        self.notice_unlock_all()?;
        let tools = &mut self.tools;
        match step.verb {
            Verb::Fork(steps, has_handlers) => child::fork(self, &step, steps, has_handlers)?,
            Verb::NoDescriptors(take, time) => run_out_of_descriptors(take, time),
            Verb::LimitData(spare_bytes, time) => limit_data(spare_bytes, time),
            Verb::Pin(cpu) => self.cpus.pin(cpu),
            Verb::Admit(threads, bytes) => admission::admit_at_once(tools, threads, bytes)?,
            Verb::ManyObjects => {
                tools.use_many_objects(self.shared.scale, self.shared.max_pending_bytes)?;
            }
            Verb::MostlyEmpty => tools.use_mostly_empty(self.shared.scale)?,
            Verb::Cache(what, key, len) => self.ready.use_cache(tools, what, key, len)?,
            Verb::LockedFile(renew) => self.ready.use_file(tools, renew)?,
            Verb::Secret(what, len) => self.ready.use_secret(tools, what, len)?,
            Verb::OfferDelay(delay) => set_offer_delay(delay),
            Verb::Drain => {
                let drained = tenure::drain(Some(Duration::from_secs(50)));
                tools.expect(drained, &[])?;
            }
            Verb::Pool(max_mib, prefill_mib, released) => {
                let options = PoolOptions::new()
                    .max_bytes(max_mib << 20)
                    .prefill_bytes(prefill_mib << 20)
                    .recycle_released(released);
                // The first is the answer of an older kernel, the second of RLIMIT_MEMLOCK.
                tools.expect(configure(&options), &["unsupported", "other"])?;
            }
            Verb::ReplaceTables(blocks, huge_pages) => tools.replace_tables(blocks, huge_pages)?,
            Verb::PurgeAll => {
                // The call fails where memory was locked after it was marked.
                tools.expect(purge_all(), &["locked", "other"])?;
                board.add(Count::PurgeAllCalls, 1);
            }
            _ => drop(self.perform_on_slot(&step)?),
        }
        self.cpus.check()?;
        self.bound_unreclaimable(step.slot)
    }

    /// Closes tenure's descriptors while the other threads wait.
    fn close_descriptors(&mut self) -> Checked {
        let _closed = close_gate();
        self.check_own_files()?;
        self.own_files = Some(close_tenures(self.shared.board)?);
        Ok(())
    }

    fn check_own_files(&mut self) -> Checked {
        match self.own_files.take() {
            Some(files) => files.check(),
            None => Ok(()),
        }
    }

    /// Performs an operation on a slot. Returns `false` if the verb is not one.
    pub fn perform_on_slot(&mut self, step: &Step) -> Checked<bool> {
        let board = self.shared.board;
        if let Verb::Renew(end, _) = step.verb {
            if let Some(mut slot) = self.slots[step.slot].take() {
                slot.check_all(board)?;
                self.tools.end(slot, end)?;
            }
            return self.map(step.slot).map(|()| true);
        }
        let (tools, part) = (&mut self.tools, (step.first, step.count));
        let Some(slot) = &mut self.slots[step.slot] else {
            return Ok(true);
        };
        match step.verb {
            Verb::Write => {
                if slot.kind.is_buffer() {
                    tools.unmark(slot, part)?;
                }
                slot.write(part, &mut tools.patterns)?;
                slot.check(part, board)?;
            }
            Verb::Check(true) => slot.check_directly(part, board)?,
            Verb::Check(false) => slot.check(part, board)?,
            Verb::Populate(how) => tools.populate(slot, part, how)?,
            Verb::Lock(mode) => tools.lock(slot, part, mode)?,
            Verb::Unlock(flags) => tools.unlock(slot, part, flags)?,
            Verb::Free(policy) => {
                if !tools.free(slot, part, policy)? {
                    self.slots[step.slot] = None;
                    self.publish(step.slot);
                }
            }
            Verb::LazyFree => tools.lazy_free(slot, part)?,
            Verb::Reuse => slot.part(part).reuse(),
            Verb::Mark(priority) => {
                let options = VolatileOptions::new().priority(priority);
                tools.mark(slot, part, options)?;
            }
            Verb::MarkAndOffer(priority) => {
                let options = VolatileOptions::new().priority(priority).offer_now();
                tools.mark(slot, part, options)?;
            }
            Verb::Unmark => tools.unmark(slot, part)?,
            Verb::ReadVolatile => tools.read_volatile(slot, part)?,
            Verb::IsIntact => tools.is_intact(slot)?,
            Verb::Purge => tools.purge(slot, part)?,
            Verb::Discard => tools.discard(slot, part)?,
            Verb::Punch => tools.punch(slot, part)?,
            Verb::PageOut => tools.page_out(slot, part),
            Verb::Residency => {
                tools.residency(slot, part)?;
                stats();
            }
            Verb::MunmapPart => {
                tools.munmap_part(slot, part)?;
                self.publish(step.slot);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Locks and unlocks all memory of the process while the other threads wait. Where locks
    /// are limited, new mappings are not locked: beside a secret `unlock_all` cannot end that.
    fn lock_all(&mut self, scope: LockScope, mode: LockMode) -> Checked {
        let scope = match self.tools.may_lock_anything {
            true => scope,
            false => LockScope::Current,
        };
        let _closed = close_gate();
        // mlockall allocates, and would exceed a full cgroup's limit: once it has locked the
        // pages, the kernel can reclaim none.
        for slot in self.slots.iter().flatten() {
            self.tools.page_out(slot, slot.all());
        }
        let allowed = self.tools.if_lock_limited("process_lock_limit");
        let locked = self.tools.expect(lock_all(scope, mode), &allowed)?;
        if locked.is_some() && scope != LockScope::Current {
            let mapping = Mapping::anonymous(64 << 10).map();
            if let Some(mapping) = self.tools.expect(mapping, &allowed)? {
                // SAFETY: nothing else uses the mapping.
                let freed = unsafe { mapping.range().lazy_free() };
                if !matches!(freed, Err(Error::Locked { .. })) {
                    let found = format!("{freed:?}");
                    return mismatch("memory mapped after lock_all", "locked", found);
                }
            }
        }
        self.unlock_matching(LockFlags::ALL)
    }

    /// Clears the locks of one mode or of both while the other threads wait.
    fn unlock_all(&mut self, flags: LockFlags, from_future: bool) -> Checked {
        let from_future = from_future && self.tools.may_lock_anything;
        let _closed = close_gate();
        if from_future {
            let locked = lock_all(LockScope::Future, LockMode::OnFault);
            self.tools.expect(locked, &[])?;
        }
        self.unlock_matching(flags)?;
        // So that no later step finds its new mappings locked.
        match from_future && flags == LockFlags::NOW {
            true => self.unlock_matching(LockFlags::ON_FAULT),
            false => Ok(()),
        }
    }

    /// Clears locks, and checks those that must stay. The caller holds GATE for writing.
    fn unlock_matching(&mut self, flags: LockFlags) -> Checked {
        let allowed = self.tools.if_lock_limited("process_lock_limit");
        let unlocked = self.tools.expect(unlock_all(flags), &allowed)?;
        if unlocked.is_some() {
            for (mode, calls) in UNLOCK_ALL_CALLS.iter().enumerate() {
                let is_cleared = flags == LockFlags::ALL || flags == FLAGS[mode];
                calls.fetch_add(u64::from(is_cleared), Relaxed);
            }
        }
        self.ready.check_locks()
    }

    /// Forgets the locks that `unlock_all` cleared, and checks those that it must keep. The
    /// caller holds GATE.
    fn notice_unlock_all(&mut self) -> Checked {
        let mut is_new = false;
        for (index, mode) in [LockMode::Now, LockMode::OnFault].into_iter().enumerate() {
            let calls = UNLOCK_ALL_CALLS[index].load(Relaxed);
            if mem::replace(&mut self.seen_unlock_all_calls[index], calls) == calls {
                continue;
            }
            is_new = true;
            let slots = self.slots.iter_mut().flatten();
            for page in slots.flat_map(|slot| &mut slot.pages) {
                page.lock = page.lock.filter(|&lock| lock != mode);
            }
        }
        match is_new {
            true => self.ready.check_locks(),
            false => Ok(()),
        }
    }

    pub fn forget_locks(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.pages.iter_mut().for_each(|page| page.lock = None);
        }
    }

    /// Marks slots volatile until this thread holds no more than its share of memory that
    /// the kernel cannot reclaim. Only the slot `changed` can have gained some.
    fn bound_unreclaimable(&mut self, changed: usize) -> Checked {
        let slot = self.slots[changed].as_ref();
        self.unreclaimable[changed] = slot.map_or(0, Slot::unreclaimable_pages);
        while self.unreclaimable.iter().sum::<usize>() > self.shared.max_unreclaimable_pages {
            // Shared memory and files cannot be volatile; a few MiB of them always fit.
            let slots = self.slots.iter_mut().enumerate();
            let slots = slots.filter_map(|(index, slot)| Some((index, slot.as_mut()?)));
            let largest = slots
                .filter(|(_, slot)| !slot.kind.is_file())
                .max_by_key(|&(index, _)| self.unreclaimable[index]);
            let Some((largest, slot)) = largest else {
                return Ok(());
            };
            if !slot.kind.is_buffer() {
                self.tools.unlock(slot, slot.all(), LockFlags::ALL)?;
            }
            self.tools.mark(slot, slot.all(), VolatileOptions::new())?;
            self.unreclaimable[largest] = 0;
        }
        Ok(())
    }

    /// Waits up to 10 s while too much memory is marked but not yet offered, or is still to
    /// be freed: the kernel can reclaim neither, and on a busy machine the threads that do
    /// it need a while.
    fn wait_for_pending(&mut self) -> Checked {
        let Some(max_bytes) = self.shared.max_pending_bytes else {
            return Ok(());
        };
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let stats = stats();
            let is_too_much = verbs::unoffered_bytes(&stats) > max_bytes
                || stats.pending_release_bytes > max_bytes;
            if !is_too_much || Instant::now() >= end {
                return Ok(());
            }
            let failed = stats.offer_failed_bytes;
            if mem::replace(&mut self.seen_offer_failed_bytes, failed) != failed {
                self.mark_again()?;
            }
            self.shared.board.add(Count::Waits, 1);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Marks volatile ranges again, because tenure does not retry an offer that failed
    /// while everything was locked.
    fn mark_again(&mut self) -> Checked {
        let _open = GATE.read();
        self.notice_unlock_all()?;
        let slots = self.slots.iter_mut().flatten();
        for slot in slots.filter(|slot| slot.kind.is_private_anonymous()) {
            for part in slot.volatile_parts() {
                self.tools.mark(slot, part, VolatileOptions::new())?;
            }
        }
        Ok(())
    }

    /// Checks everything once more, and drops it.
    fn end(&mut self) -> Checked {
        let _open = GATE.read();
        self.ready.check()?;
        self.check_own_files()?;
        self.tools.begin();
        for index in 0..self.slots.len() {
            if let Some(mut slot) = self.slots[index].take() {
                slot.check_all(self.shared.board)?;
                self.publish(index);
                self.tools.end(slot, End::Drop)?;
            }
        }
        Ok(())
    }
}

/// The CPUs that a thread may run on, which only the thread itself changes.
struct Cpus {
    all: Vec<usize>,
    allowed: Option<CpuSet>,
}

impl Cpus {
    fn new() -> Self {
        let allowed = sched_getaffinity(None).ok();
        let is_set = |&cpu: &usize| allowed.as_ref().is_some_and(|set| set.is_set(cpu));
        Self {
            all: (0..CpuSet::MAX_CPU).filter(is_set).collect(),
            allowed,
        }
    }

    fn pin(&mut self, cpu: Option<usize>) {
        let mut wanted = CpuSet::new();
        match cpu {
            _ if self.all.is_empty() => return,
            Some(cpu) => wanted.set(self.all[cpu % self.all.len()]),
            None => self.all.iter().for_each(|&cpu| wanted.set(cpu)),
        }
        // The call fails where the CPUs of the process's cgroup have changed.
        if sched_setaffinity(None, &wanted).is_ok() {
            self.allowed = Some(wanted);
        }
    }

    fn check(&self) -> Checked {
        let now = sched_getaffinity(None).ok();
        match now == self.allowed {
            true => Ok(()),
            false => {
                let [expected, found] = [&self.allowed, &now].map(|cpus| format!("{cpus:?}"));
                mismatch("the CPUs of a thread", expected, found)
            }
        }
    }
}

/// Returns the FNV-1a hash of an operation.
fn digest(thread: usize, step: &Step) -> u64 {
    let text = format!("{thread} {step:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
