//! The plan of a thread: its operations, decided by the seed and its number alone.

use std::time::Duration;

use fastrand::Rng;
use tenure::lazy_free::FreePolicy;
use tenure::lock::{LockFlags, LockScope};
use tenure::populate::Strategy;
use tenure::volatile::Priority;
use tenure::{Access, HugePages, LockMode};

use super::step::{
    CACHE_KEYS, CacheUse, End, Kind, MAX_SECRET_BYTES, Populate, SecretUse, Step, VERBS, Verb, kept,
};

/// The slots of a thread: kind, how many, and pages at most.
pub const SLOTS: [(Kind, usize, usize); 10] = [
    (Kind::Plain, 6, 64),
    (Kind::Plain, 4, 1024),
    // Large enough that workers free them.
    (Kind::Plain, 2, 4096),
    (Kind::Huge, 2, 2048),
    (Kind::SharedAnonymous, 1, 1536),
    (Kind::Memfd, 1, 512),
    (Kind::Buffer, 32, 2048),
    (Kind::InArena, 6, 64),
    (Kind::File, 1, 256),
    (Kind::PrivateFile, 1, 256),
];

pub struct Plan {
    random: Rng,
    next: u64,
    /// Kind, pages now, and pages at most.
    pub slots: Vec<(Kind, usize, usize)>,
}

impl Plan {
    pub fn new(seed: u64, thread: usize) -> Self {
        // Mixed, so that neighbouring seeds and threads get different plans.
        let mixed = Rng::with_seed(seed).u64(..) ^ Rng::with_seed(!(thread as u64)).u64(..);
        let mut random = Rng::with_seed(mixed);
        let mut slots = Vec::new();
        for (kind, slot_count, max_pages) in SLOTS {
            for _ in 0..slot_count {
                slots.push((kind, page_count(&mut random, max_pages), max_pages));
            }
        }
        let next = 0;
        Self {
            random,
            next,
            slots,
        }
    }

    /// Decides the next step. The first steps use each verb once, so that a short run
    /// has all of them.
    pub fn step(&mut self) -> Step {
        let mut step = self.draw();
        while self.next < VERBS.len() as u64 && step.verb.index() as u64 != self.next {
            step = self.draw();
        }
        self.next += 1;
        let pages = &mut self.slots[step.slot].1;
        match step.verb {
            Verb::Renew(_, page_count) => *pages = page_count,
            Verb::MunmapPart => *pages = kept(*pages, step.first, step.count).1,
            _ => {}
        }
        step
    }

    fn draw(&mut self) -> Step {
        let slot = self.random.usize(..self.slots.len());
        let (kind, pages, _) = self.slots[slot];
        let first = self.random.usize(..pages);
        let count = match self.random.usize(..4) {
            0 => pages - first,
            1 => self.random.usize(1..=(pages - first).min(40)),
            _ => self.random.usize(1..=pages - first),
        };
        let all = self.random.usize(..4) == 0;
        let (first, count) = if all { (0, pages) } else { (first, count) };
        let verb = match self.random.usize(..40) {
            0..4 => self.without_slot(),
            _ if kind.is_buffer() => self.on_buffer(slot),
            _ if kind.is_private_anonymous() => self.on_private_anonymous(slot),
            _ => self.on_file(slot),
        };
        let number = self.next;
        Step {
            number,
            slot,
            first,
            count,
            verb,
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.usize(..from.len())]
    }

    fn check(&mut self) -> Verb {
        Verb::Check(self.random.bool())
    }

    fn renew(&mut self, slot: usize) -> Verb {
        let end = self.pick(&[
            End::Munmap,
            End::Drop,
            End::MunmapSync,
            End::Recycle,
            End::Recycle,
        ]);
        Verb::Renew(end, page_count(&mut self.random, self.slots[slot].2))
    }

    fn priority(&mut self) -> Priority {
        self.pick(&Priority::ALL)
    }

    fn policy(&mut self) -> FreePolicy {
        self.pick(&[FreePolicy::Eager, FreePolicy::Lazy, FreePolicy::Adaptive])
    }

    fn lock_mode(&mut self) -> LockMode {
        self.pick(&[LockMode::Now, LockMode::OnFault])
    }

    fn unlock(&mut self) -> Verb {
        let all = LockFlags::ALL;
        Verb::Unlock(self.pick(&[LockFlags::NOW, LockFlags::ON_FAULT, all, all]))
    }

    fn populate(&mut self, strategies: &[Strategy]) -> Verb {
        Verb::Populate(Populate {
            access: self.pick(&[Access::Read, Access::Write]),
            strategy: self.pick(strategies),
            threads: self.random.usize(1..=3),
            chunk_pages: self.pick(&[0, 0, 1, 16, 300]),
            in_background: self.random.usize(..8) == 0,
            cancel: self.random.usize(..8) == 0,
        })
    }

    fn shortage(&mut self) -> Duration {
        Duration::from_micros(self.random.u64(500..30_000))
    }

    fn on_private_anonymous(&mut self, slot: usize) -> Verb {
        match self.random.usize(..60) {
            0..10 => Verb::Write,
            10..16 => self.check(),
            16..20 => self.populate(&[Strategy::Auto, Strategy::Touch, Strategy::ReadThenWrite]),
            20..22 => Verb::Lock(self.lock_mode()),
            22..26 => self.unlock(),
            26..29 => Verb::Free(self.policy()),
            29..31 => Verb::LazyFree,
            31 => Verb::Reuse,
            32..38 => Verb::Mark(self.priority()),
            38..41 => Verb::MarkAndOffer(self.priority()),
            41..48 => Verb::Unmark,
            48 => Verb::Purge,
            49..51 => Verb::Discard,
            51 => Verb::Punch,
            52..55 => Verb::PageOut,
            55 => Verb::MunmapPart,
            56 => Verb::Residency,
            _ => self.renew(slot),
        }
    }

    fn on_buffer(&mut self, slot: usize) -> Verb {
        match self.random.usize(..40) {
            0..8 => Verb::Write,
            8..11 => self.check(),
            11..19 => Verb::Mark(self.priority()),
            19..27 => Verb::Unmark,
            27..32 => Verb::ReadVolatile,
            32..34 => Verb::IsIntact,
            34 => Verb::Purge,
            35..37 => Verb::PageOut,
            37 => Verb::Residency,
            _ => self.renew(slot),
        }
    }

    fn on_file(&mut self, slot: usize) -> Verb {
        use Strategy::{AllocateThenPopulate, Auto, ReadAheadThenPopulate, Touch};
        let kind = self.slots[slot].0;
        match self.random.usize(..30) {
            0..7 => Verb::Write,
            7..11 => self.check(),
            11..14 => match kind {
                Kind::PrivateFile => self.populate(&[Auto, Touch, ReadAheadThenPopulate]),
                Kind::SharedAnonymous => self.populate(&[Auto, Touch]),
                _ => self.populate(&[Auto, Touch, AllocateThenPopulate]),
            },
            14..16 => Verb::Lock(self.lock_mode()),
            16..19 => self.unlock(),
            // tenure must refuse these two and change nothing.
            19 => Verb::Free(self.policy()),
            20 => Verb::Mark(self.priority()),
            21..23 => Verb::Discard,
            23..26 => Verb::Punch,
            26 => Verb::PageOut,
            27 => Verb::Residency,
            // The other kinds have a descriptor, which would stay open.
            28 if matches!(kind, Kind::SharedAnonymous | Kind::PrivateFile) => Verb::MunmapPart,
            _ => self.renew(slot),
        }
    }

    fn without_slot(&mut self) -> Verb {
        match self.random.usize(..280) {
            0..100 => {
                let what = match self.random.usize(..8) {
                    0..3 => CacheUse::Insert(self.priority()),
                    3..5 => CacheUse::Get,
                    5 => CacheUse::Hold,
                    6 => CacheUse::GetOrInsert,
                    _ => CacheUse::Remove,
                };
                let key = self.random.usize(..CACHE_KEYS);
                Verb::Cache(what, key, self.random.usize(1..=128 << 10))
            }
            100..130 => {
                let what = match self.random.usize(..16) {
                    0..6 => SecretUse::Extend,
                    6..8 => SecretUse::Truncate,
                    8..10 => SecretUse::Resize,
                    10..12 => SecretUse::Clear,
                    12..14 => SecretUse::Renew,
                    _ => SecretUse::RenewHidden,
                };
                Verb::Secret(what, self.random.usize(..MAX_SECRET_BYTES))
            }
            130..155 => Verb::LockedFile(self.random.usize(..6) == 0),
            155..175 => Verb::Fork(self.random.usize(1..=4), self.random.bool()),
            175..185 => {
                let micros = self.pick(&[0, 200, 2000, 100_000]);
                Verb::OfferDelay(Duration::from_micros(micros))
            }
            185..190 => Verb::Drain,
            190..194 => Verb::PurgeAll,
            194..197 => {
                let scope = self.pick(&[LockScope::Current, LockScope::CurrentAndFuture]);
                Verb::LockProcess(scope, LockMode::OnFault)
            }
            197..200 => Verb::LockProcess(LockScope::Future, self.lock_mode()),
            200..204 => Verb::NoDescriptors(self.random.bool(), self.shortage()),
            204..206 => Verb::CloseDescriptors,
            206..210 => Verb::LimitData(self.random.usize(..8 << 20), self.shortage()),
            210..217 => {
                let cpu = self.random.usize(..3);
                Verb::Pin(cpu.checked_sub(1).map(|_| self.random.usize(..1 << 10)))
            }
            217 => Verb::ManyObjects,
            218..226 => {
                let threads = self.random.usize(1..=3);
                Verb::Admit(threads, self.random.usize(1..=4 << 20))
            }
            226..231 => {
                let flags = self.pick(&[LockFlags::NOW, LockFlags::ON_FAULT, LockFlags::ALL]);
                Verb::UnlockProcess(flags, self.random.bool())
            }
            231..237 => {
                let max_mib = self.random.usize(..48);
                Verb::Pool(max_mib, self.pick(&[0, 8]), self.random.bool())
            }
            237..277 => {
                let huge_pages = self.pick(&[HugePages::Never, HugePages::Always]);
                Verb::ReplaceTables(self.random.usize(2..=4), huge_pages)
            }
            _ => Verb::MostlyEmpty,
        }
    }
}

/// Returns a number of pages, more often a large one.
fn page_count(random: &mut Rng, max_pages: usize) -> usize {
    match random.usize(..4) {
        0 => random.usize(1..=max_pages),
        _ => random.usize(max_pages.div_ceil(2)..=max_pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(seed: u64, thread: usize) -> Vec<String> {
        let mut plan = Plan::new(seed, thread);
        (0..2000).map(|_| format!("{:?}", plan.step())).collect()
    }

    #[test]
    fn plan_depends_on_seed_and_thread_alone() {
        assert_eq!(texts(3, 1), texts(3, 1));
        assert_ne!(texts(3, 1), texts(3, 2));
        assert_ne!(texts(3, 1), texts(4, 1));
        assert_ne!(texts(1, 2), texts(2, 1));
    }

    #[test]
    fn steps_lie_in_their_slots_and_use_every_verb() {
        let mut plan = Plan::new(1, 0);
        let mut seen = [false; VERBS.len()];
        for number in 0..200_000 {
            let sizes: Vec<_> = plan.slots.iter().map(|slot| slot.1).collect();
            let step = plan.step();
            assert_eq!(step.number, number);
            assert!(step.count > 0 && step.first + step.count <= sizes[step.slot]);
            seen[step.verb.index()] = true;
        }
        assert_eq!(seen, [true; VERBS.len()]);
    }
}
