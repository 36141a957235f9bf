//! Processes that replace a value of a shared cache, remove it, find it, and die.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use crate::check;
use crate::shared_word::{Reading, State, Word};

/// The entries of a set that the key's value may be in.
const ENTRIES: usize = 2;

/// How often a look-up begins anew.
const MAX_TRIES: usize = 4;

/// How often it looks for a value that has moved.
const MAX_LOOKS: usize = 4;

/// The tags of two keys of the same set.
const KEY: u32 = 1;
const OTHER_KEY: u32 = 2;

#[derive(Default)]
struct Entry {
    word: Word,
    generation: [AtomicU64; 2],
    tag: AtomicU32,
    /// Two words on each side: a look-up that finds them different has found half a value.
    contents: [[AtomicU32; 2]; 2],
}

/// The values of one key.
struct Set {
    entries: [Entry; ENTRIES],
    sequence: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    index: usize,
    word: Reading,
    generation: u64,
}

impl Seen {
    fn is_value(&self) -> bool {
        self.word.state() == State::Live && !self.word.is_doomed()
    }
}

/// How far a process comes before it is killed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Death {
    Begun,
    HalfWritten,
    Written,
    Switched,
    Freed,
    Never,
}

impl Set {
    /// Makes a set without values.
    fn empty() -> Arc<Self> {
        Arc::new(Self {
            entries: Default::default(),
            sequence: AtomicU64::new(1),
        })
    }

    /// Makes a set that has version 1 of the value.
    fn new() -> Arc<Self> {
        let set = Self::empty();
        set.put_beside(0, KEY, 1);
        set
    }

    /// Makes a set that has version 1 of the value in its last entry, and had it in the first.
    fn with_value_in_last_entry() -> Arc<Self> {
        let set = Self::new();
        set.put_beside(0, KEY, 1);
        set.purge(0, 0);
        set
    }

    fn write(&self, (index, side): (usize, usize), value: u32) {
        for half in &self.entries[index].contents[side] {
            half.store(value, Ordering::Relaxed);
        }
    }

    fn next_generation(&self, index: usize, side: usize) -> u64 {
        let generation = self.sequence.fetch_add(1, Ordering::Relaxed);
        self.entries[index].generation[side].store(generation, Ordering::Release);
        generation
    }

    /// Models `Table::look`.
    fn look(&self, index: usize) -> Seen {
        let entry = &self.entries[index];
        let word = entry.word.read();
        let generation = entry.generation[word.side()].load(Ordering::Acquire);
        Seen {
            index,
            word: word.unowned(),
            generation,
        }
    }

    /// Models `Table::see`.
    fn see(&self, index: usize) -> Option<Seen> {
        Some(self.look(index)).filter(Seen::is_value)
    }

    /// Models `Table::find`.
    fn find(&self) -> Vec<Seen> {
        let mut before = None;
        let mut found = Vec::new();
        for _ in 0..MAX_LOOKS {
            let seen: Vec<_> = (0..ENTRIES).map(|index| self.look(index)).collect();
            let is_it = |seen: &&Seen| {
                let tag = &self.entries[seen.index].tag;
                seen.is_value() && tag.load(Ordering::Relaxed) == KEY
            };
            found = seen.iter().filter(is_it).copied().collect();
            if !found.is_empty() || before.replace(seen.clone()) == Some(seen) {
                break;
            }
        }
        found.sort_unstable_by_key(|seen| std::cmp::Reverse(seen.generation));
        found
    }

    /// Models `Table::copy`.
    fn copy(&self, seen: Seen) -> Option<u32> {
        let [first, second] = &self.entries[seen.index].contents[seen.word.side()];
        let halves = [
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        ];
        fence(Ordering::SeqCst);
        (self.see(seen.index) == Some(seen)).then(|| {
            assert_eq!(halves[0], halves[1], "half a value");
            halves[0]
        })
    }

    /// Models `SharedCache::look_up`.
    fn get(&self) -> Option<u32> {
        for _ in 0..MAX_TRIES {
            let found = self.find();
            for (nth, &seen) in found.iter().enumerate() {
                if let Some(value) = self.copy(seen) {
                    self.doom_older(seen, &found[nth + 1..]);
                    return Some(value);
                }
            }
            if found.is_empty() {
                return None;
            }
        }
        None
    }

    fn doom_older(&self, newest: Seen, older: &[Seen]) {
        for seen in older.iter().filter(|it| it.generation < newest.generation) {
            self.doom(*seen);
        }
    }

    /// Models `Table::doom`.
    fn doom(&self, seen: Seen) -> bool {
        self.see(seen.index) == Some(seen) && self.entries[seen.index].word.doom_value(seen.word)
    }

    /// Models `Table::put`. Returns whether the value was inserted.
    fn insert(&self, process: usize, value: u32, death: Death) {
        let seen = self.find().first().copied();
        let is_replacing = seen.is_some_and(|it| {
            self.entries[it.index]
                .word
                .begin_replacing(process, it.word)
        });
        let newest = match seen.filter(|_| is_replacing) {
            Some(seen) => self.replace(process, seen, value, death),
            None => self.put_beside(process, KEY, value),
        };
        if let Some(newest) = newest.filter(|_| death == Death::Never) {
            fence(Ordering::SeqCst);
            let found = self.find();
            let newer = found.first().filter(|it| it.generation > newest.generation);
            self.doom_older(newer.copied().unwrap_or(newest), &found);
        }
    }

    /// Models `Table::replace`.
    fn replace(&self, process: usize, seen: Seen, value: u32, death: Death) -> Option<Seen> {
        let (index, side) = (seen.index, 1 - seen.word.side());
        let entry = &self.entries[index];
        if death == Death::Begun {
            return None;
        }
        if self.see(index) != Some(seen) {
            entry.word.unpin(1 << process);
            return self.put_beside(process, KEY, value);
        }
        entry.contents[side][0].store(value, Ordering::Relaxed);
        if death == Death::HalfWritten {
            return None;
        }
        self.write((index, side), value);
        let generation = self.next_generation(index, side);
        if death == Death::Written {
            return None;
        }
        let is_inserted = entry.word.switch(process, 2);
        if death == Death::Switched {
            return None;
        }
        self.write((index, 1 - entry.word.read().side()), 0);
        if death == Death::Freed {
            return None;
        }
        entry.word.unpin(1 << process);
        is_inserted.then_some(Seen {
            index,
            word: Reading::live(2).on_side(side),
            generation,
        })
    }

    /// Models `Table::put_beside`.
    fn put_beside(&self, process: usize, tag: u32, value: u32) -> Option<Seen> {
        let index = (0..ENTRIES).find(|&index| {
            let word = &self.entries[index].word;
            let now = word.read();
            now.state() == State::Free && word.claim(process, now)
        })?;
        self.entries[index].tag.store(tag, Ordering::Relaxed);
        self.write((index, 0), value);
        let generation = self.next_generation(index, 0);
        assert!(
            self.entries[index]
                .word
                .publish(process, State::Live, 2, false)
        );
        let word = Reading::live(2);
        Some(Seen {
            index,
            word,
            generation,
        })
    }

    /// Models `Table::purge`.
    fn purge(&self, process: usize, index: usize) {
        let word = &self.entries[index].word;
        let now = word.read();
        if now.state() == State::Live && now.is_claimable() && word.claim(process, now) {
            self.write((index, 0), 0);
            self.write((index, 1), 0);
            assert!(word.publish(process, State::Free, 2, false));
        }
    }

    /// Models `Table::clear`.
    fn clear(&self, process: usize, dead: u64) {
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.word.take_over_replacing(process, dead) {
                self.write((index, 1 - entry.word.read().side()), 0);
                entry.word.unpin(1 << process);
            }
        }
    }
}

fn spawn(set: &Arc<Set>, act: impl FnOnce(&Set) + 'static) -> thread::JoinHandle<()> {
    let set = set.clone();
    thread::spawn(move || act(&set))
}

/// Two look-ups beside an insertion find the old value or the new one, and never the old one
/// after the new one.
pub fn replaced_value_is_found_all_the_time() {
    check(|| {
        let set = Set::new();
        let writer = spawn(&set, |set| set.insert(1, 2, Death::Never));
        let first = set.get().expect("a value is found");
        let second = set.get().expect("a value is found");
        assert!(first <= second && second <= 2, "{second} after {first}");
        writer.join().unwrap();
        assert_eq!(set.get(), Some(2));
    });
}

/// Of two insertions at the same time one stays, whole, and nothing older is found after either
/// has returned, also if the newest is purged.
pub fn concurrent_insertions_leave_nothing_older() {
    check(|| {
        let set = Set::new();
        let writer = spawn(&set, |set| {
            set.insert(1, 3, Death::Never);
            assert_ne!(set.get(), Some(1));
        });
        set.insert(2, 2, Death::Never);
        let found = set.get();
        assert!(matches!(found, Some(2 | 3)), "{found:?}");
        set.purge(2, set.find().first().map_or(0, |seen| seen.index));
        assert_ne!(set.get(), Some(1));
        writer.join().unwrap();
        assert_ne!(set.get(), Some(1));
    });
}

/// A process that dies at any moment of an insertion leaves the old value or the new one, and
/// the entry can be replaced and purged again.
pub fn value_survives_the_death_of_the_process_that_replaces_it() {
    use Death::{Begun, Freed, HalfWritten, Switched, Written};
    for death in [Begun, HalfWritten, Written, Switched, Freed] {
        check(move || {
            let set = Set::new();
            set.insert(1, 2, death);
            let expected = if death < Switched { 1 } else { 2 };
            let clearing = spawn(&set, |set| set.clear(2, 1 << 1));
            assert_eq!(set.get(), Some(expected));
            clearing.join().unwrap();
            assert_eq!(set.get(), Some(expected));
            set.insert(3, 5, Death::Never);
            assert_eq!((set.get(), set.find().len()), (Some(5), 1));
            set.purge(3, set.find()[0].index);
            assert_eq!(set.get(), None);
        });
    }
}

/// A value that is removed while it is replaced is not found any more, neither the old one nor
/// one that the removal has seen.
pub fn value_removed_while_it_is_replaced_is_gone_or_the_new_one() {
    check(|| {
        let set = Set::new();
        let writer = spawn(&set, |set| set.insert(1, 2, Death::Never));
        for seen in set.find() {
            set.doom(seen);
        }
        assert_ne!(set.get(), Some(1));
        writer.join().unwrap();
        assert_ne!(set.get(), Some(1));
    });
}

/// A look-up finds a value that moves to an entry which it has looked at before: the process
/// that owned the other side of its entry is dead.
pub fn value_that_moves_to_another_entry_is_found_all_the_time() {
    check(|| {
        let set = Set::with_value_in_last_entry();
        let last = ENTRIES - 1;
        let seen = set.see(last).expect("a value");
        assert!(set.entries[last].word.begin_replacing(5, seen.word));
        let writer = spawn(&set, move |set| {
            let newest = set.put_beside(1, KEY, 2).expect("a free entry");
            set.doom_older(newest, &[seen]);
        });
        let found = set.get();
        assert!(matches!(found, Some(1 | 2)), "{found:?}");
        writer.join().unwrap();
        assert_eq!((set.get(), set.find().len()), (Some(2), 1));
    });
}

/// A value of another key takes an entry where the key's value was: a look-up neither takes it
/// for the key's, nor dooms the key's as older.
pub fn value_of_another_key_does_not_displace_the_keys_own() {
    check(|| {
        let set = Set::with_value_in_last_entry();
        let writer = spawn(&set, |set| {
            set.put_beside(1, OTHER_KEY, 9);
        });
        assert_eq!(set.get(), Some(1));
        writer.join().unwrap();
        assert_eq!(set.get(), Some(1));
    });
}

/// Of two processes that insert a missing value at the same time the newer value stays alone.
pub fn concurrent_first_insertions_leave_one_value() {
    check(|| {
        let set = Set::empty();
        let writer = spawn(&set, |set| set.insert(1, 3, Death::Never));
        set.insert(2, 2, Death::Never);
        writer.join().unwrap();
        assert_eq!(set.find().len(), 1);
    });
}
