//! What a thread does: operation after operation, from the seed and the thread's
//! number alone.

use fastrand::Rng;
use tenure::{Access, FreePolicy, LockAll, LockMode, LockModes, Priority, Strategy};

use super::step::{
    CACHE_KEYS, CacheUse, End, Kind, Populate, SECRET_BYTES, SecretUse, Step, VERBS, Verb, kept,
};

/// The slots of a thread: their kinds and how many pages they have at most.
const SLOTS: [(Kind, usize, usize); 8] = [
    (Kind::Plain, 6, 64),
    (Kind::Plain, 4, 1024),
    // Enough to be carried off, and freed by others.
    (Kind::Plain, 2, 4096),
    (Kind::Huge, 2, 2048),
    (Kind::SharedAnonymous, 1, 1536),
    (Kind::Memfd, 1, 512),
    (Kind::Buffer, 32, 2048),
    (Kind::InArena, 6, 64),
];

const FILES: [(Kind, usize, usize); 2] = [(Kind::File, 1, 256), (Kind::PrivateFile, 1, 256)];

/// Decides.
pub struct Plan {
    random: Rng,
    next: u64,
    /// Kind, pages now, pages at most.
    slots: Vec<(Kind, usize, usize)>,
}

impl Plan {
    pub fn new(seed: u64, thread: usize) -> Self {
        // Neighbouring seeds must not make neighbouring threads' plans.
        let mixed = Rng::with_seed(seed).u64(..) ^ Rng::with_seed(!(thread as u64)).u64(..);
        let mut random = Rng::with_seed(mixed);
        let mut slots = Vec::new();
        for (kind, slot_count, most) in SLOTS.into_iter().chain(FILES) {
            for _ in 0..slot_count {
                slots.push((kind, page_count(&mut random, most), most));
            }
        }
        Self {
            random,
            next: 0,
            slots,
        }
    }

    /// The slots as they are at first: kinds and numbers of pages.
    pub fn slots(&self) -> impl Iterator<Item = (Kind, usize)> {
        self.slots.iter().map(|&(kind, pages, _)| (kind, pages))
    }

    /// Decides what is next. Each kind of operation comes once at first, so that a
    /// short run has all of them.
    pub fn step(&mut self) -> Step {
        let mut step = self.draw();
        while self.next < VERBS.len() as u64 && step.verb.index() as u64 != self.next {
            step = self.draw();
        }
        self.next += 1;
        let pages = &mut self.slots[step.slot].1;
        match step.verb {
            Verb::Renew { page_count, .. } => *pages = page_count,
            Verb::Cut => *pages = kept(*pages, step.first, step.count).1,
            _ => {}
        }
        step
    }

    fn draw(&mut self) -> Step {
        let slot = self.random.usize(..self.slots.len());
        let (kind, pages, most) = self.slots[slot];
        let first = self.random.usize(..pages);
        let count = match self.random.usize(..4) {
            0 => pages - first,
            1 => self.random.usize(1..=(pages - first).min(40)),
            _ => self.random.usize(1..=pages - first),
        };
        let whole = self.random.usize(..4) == 0;
        let (first, count) = if whole { (0, pages) } else { (first, count) };
        let mut verb = match self.random.usize(..40) {
            0..4 => self.anywhere(),
            _ if kind.is_buffer() => self.of_buffer(),
            _ if kind.is_private_anonymous() => self.of_memory(),
            _ => self.of_file(kind),
        };
        if let Verb::Renew {
            page_count: new, ..
        } = &mut verb
        {
            *new = page_count(&mut self.random, most);
        }
        Step {
            number: self.next,
            slot,
            first,
            count,
            verb,
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn check(&mut self) -> Verb {
        Verb::Check {
            direct: self.random.bool(),
        }
    }

    fn renew(&mut self) -> Verb {
        let end = self.pick(&[End::Munmap, End::Drop, End::Now]);
        Verb::Renew { end, page_count: 0 }
    }

    fn priority(&mut self) -> Priority {
        self.pick(&Priority::ALL)
    }

    fn policy(&mut self) -> FreePolicy {
        self.pick(&[FreePolicy::Eager, FreePolicy::Lazy, FreePolicy::Adaptive])
    }

    fn lock(&mut self) -> Verb {
        Verb::Lock(self.pick(&[LockMode::Now, LockMode::OnFault]))
    }

    fn unlock(&mut self) -> Verb {
        let modes = [
            LockModes::NOW,
            LockModes::ON_FAULT,
            LockModes::ALL,
            LockModes::ALL,
        ];
        Verb::Unlock(self.pick(&modes))
    }

    fn populate(&mut self, ways: &[Strategy]) -> Verb {
        Verb::Populate(Populate {
            access: self.pick(&[Access::Read, Access::Write]),
            strategy: self.pick(ways),
            threads: self.random.usize(1..=3),
            chunk_pages: self.pick(&[0, 0, 1, 16, 300]),
            in_background: self.random.usize(..8) == 0,
            cancel: self.random.usize(..8) == 0,
        })
    }

    fn of_memory(&mut self) -> Verb {
        match self.random.usize(..60) {
            0..10 => Verb::Write,
            10..16 => self.check(),
            16..20 => self.populate(&[Strategy::Auto, Strategy::Touch, Strategy::ReadThenWrite]),
            20..22 => self.lock(),
            22..26 => self.unlock(),
            26..29 => Verb::Free(self.policy()),
            29..31 => Verb::LazyFree,
            31 => Verb::Reuse,
            32..38 => Verb::Mark(self.priority()),
            38..41 => Verb::MarkNow(self.priority()),
            41..48 => Verb::Unmark,
            48 => Verb::Purge,
            49..51 => Verb::Discard,
            51 => Verb::Punch,
            52..55 => Verb::PageOut,
            55 => Verb::Cut,
            56 => Verb::Residency,
            _ => self.renew(),
        }
    }

    fn of_buffer(&mut self) -> Verb {
        match self.random.usize(..40) {
            0..8 => Verb::Write,
            8..11 => self.check(),
            11..19 => Verb::Mark(self.priority()),
            19..27 => Verb::Unmark,
            27..32 => Verb::ReadVolatile,
            32..34 => Verb::IsWhole,
            34 => Verb::Purge,
            35..37 => Verb::PageOut,
            37 => Verb::Residency,
            _ => self.renew(),
        }
    }

    fn of_file(&mut self, kind: Kind) -> Verb {
        use Strategy::{AllocateThenPopulate, Auto, ReadAheadThenPopulate, Touch};
        match self.random.usize(..30) {
            0..7 => Verb::Write,
            7..11 => self.check(),
            11..14 if kind == Kind::PrivateFile => {
                self.populate(&[Auto, Touch, ReadAheadThenPopulate])
            }
            11..14 if kind == Kind::SharedAnonymous => self.populate(&[Auto, Touch]),
            11..14 => self.populate(&[Auto, Touch, AllocateThenPopulate]),
            14..16 => self.lock(),
            16..19 => self.unlock(),
            // Refused, and nothing may be done.
            19 => Verb::Free(self.policy()),
            20 => Verb::Mark(self.priority()),
            21..23 => Verb::Discard,
            23..26 => Verb::Punch,
            26 => Verb::PageOut,
            27 => Verb::Residency,
            // What else has a descriptor, which would stay behind.
            28 if matches!(kind, Kind::SharedAnonymous | Kind::PrivateFile) => Verb::Cut,
            _ => self.renew(),
        }
    }

    /// What has nothing to do with the slot.
    fn anywhere(&mut self) -> Verb {
        match self.random.usize(..200) {
            0..100 => Verb::Cache {
                key: self.random.usize(..CACHE_KEYS),
                len: self.random.usize(1..=128 << 10),
                what: match self.random.usize(..8) {
                    0..3 => CacheUse::Insert(self.priority()),
                    3..5 => CacheUse::Get,
                    5 => CacheUse::Hold,
                    6 => CacheUse::GetOrInsert,
                    _ => CacheUse::Remove,
                },
            },
            100..130 => Verb::Secret {
                len: self.random.usize(..SECRET_BYTES),
                what: match self.random.usize(..8) {
                    0..3 => SecretUse::Extend,
                    3 => SecretUse::Truncate,
                    4 => SecretUse::Resize,
                    5 => SecretUse::Clear,
                    _ => SecretUse::Renew {
                        hidden: self.random.bool(),
                    },
                },
            },
            130..155 => Verb::LockedFile {
                renew: self.random.usize(..6) == 0,
            },
            155..175 => Verb::Fork {
                steps: self.random.usize(1..=4),
            },
            175..185 => Verb::Delay {
                micros: self.pick(&[0, 200, 2000, 100_000]),
            },
            185..190 => Verb::Drain,
            190..194 => Verb::PurgeAll,
            194..197 => Verb::LockAll(
                self.pick(&[LockAll::Current, LockAll::CurrentAndFuture]),
                LockMode::OnFault,
            ),
            _ => Verb::LockAll(
                LockAll::Future,
                self.pick(&[LockMode::Now, LockMode::OnFault]),
            ),
        }
    }
}

/// Mostly large ones.
fn page_count(random: &mut Rng, most: usize) -> usize {
    match random.usize(..4) {
        0 => random.usize(1..=most),
        _ => random.usize(most.div_ceil(2)..=most),
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
    fn seed_and_thread_decide_everything() {
        assert_eq!(texts(3, 1), texts(3, 1));
        assert_ne!(texts(3, 1), texts(3, 2));
        assert_ne!(texts(3, 1), texts(4, 1));
        assert_ne!(texts(1, 2), texts(2, 1));
    }

    #[test]
    fn steps_lie_in_their_slots_and_every_verb_comes() {
        let mut plan = Plan::new(1, 0);
        let mut seen = [false; VERBS.len()];
        for number in 0..200_000 {
            let sizes: Vec<_> = plan.slots().map(|(_, pages)| pages).collect();
            let step = plan.step();
            assert_eq!(step.number, number);
            assert!(step.count > 0 && step.first + step.count <= sizes[step.slot]);
            seen[step.verb.index()] = true;
        }
        assert_eq!(seen, [true; VERBS.len()]);
    }
}
