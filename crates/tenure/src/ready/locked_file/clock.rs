//! The choice of the next chunk to evict: a CLOCK (second-chance) algorithm over the
//! chunks, in the order in which they were last faulted in. It only decides, and touches
//! no memory.

use std::collections::BTreeMap;

/// The most times that the clock skips a chunk between two evictions. With 8, a hot set
/// that fills nine tenths of the budget has 0.9 chunks evicted for each cold one that is
/// faulted in; without skips it would be 5.6. More skips would keep chunks that have
/// become cold for longer.
const MAX_SKIPS: u8 = 8;

/// The chunks that have locked pages, in the order in which they are evicted.
///
/// Eviction is also the test for use: only a chunk that is used again refaults, and the
/// use of a resident chunk cannot be observed. If a chunk refaults before as many bytes
/// as the budget were evicted after it (a short refault distance), its eviction was in
/// vain. The clock then skips it before its next eviction: once, then twice, four times,
/// and so on, so that a hot chunk costs little. Skips run out, so a chunk that has become
/// cold is evicted in the end, and a clock of only hot chunks still finds a victim.
pub(super) struct Clock {
    budget_bytes: usize,
    locked_bytes: usize,
    /// The total evicted so far, by which refault distances are measured.
    evicted_bytes: u64,
    chunks: Vec<Chunk>,
    /// Chunks by their turns: the first is next.
    order: BTreeMap<u64, usize>,
    next_turn: u64,
}

#[derive(Clone, Copy, Default)]
struct Chunk {
    locked_bytes: usize,
    /// Its key in the order, while it has locked bytes.
    turn: u64,
    /// The value of `evicted_bytes` at its last eviction.
    evicted_at: Option<u64>,
    /// How many times it is skipped after each refault.
    skips: u8,
    /// How many of these are left.
    skips_left: u8,
}

impl Clock {
    pub(super) fn new(chunk_count: usize, budget_bytes: usize) -> Self {
        Self {
            budget_bytes,
            locked_bytes: 0,
            evicted_bytes: 0,
            chunks: vec![Chunk::default(); chunk_count],
            order: BTreeMap::new(),
            next_turn: 0,
        }
    }

    pub(super) fn set_budget(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
    }

    /// Returns how much of a chunk was locked at its last update.
    pub(super) fn locked_bytes(&self, index: usize) -> usize {
        self.chunks[index].locked_bytes
    }

    /// Records how much of a chunk is locked now. A chunk that has grown was used since
    /// its last update, and moves to the end. Returns whether it has grown.
    pub(super) fn update(&mut self, index: usize, locked_bytes: usize) -> bool {
        let chunk = &mut self.chunks[index];
        let before = std::mem::replace(&mut chunk.locked_bytes, locked_bytes);
        self.locked_bytes = self.locked_bytes - before + locked_bytes;
        if before > 0 && (locked_bytes == 0 || locked_bytes > before) {
            self.order.remove(&chunk.turn);
        }
        if locked_bytes <= before {
            return false;
        }
        if before == 0 {
            let is_early_refault = chunk
                .evicted_at
                .is_some_and(|at| self.evicted_bytes - at <= self.budget_bytes as u64);
            chunk.skips = match is_early_refault {
                true => (chunk.skips * 2).clamp(1, MAX_SKIPS),
                false => 0,
            };
            chunk.skips_left = chunk.skips;
        }
        self.move_to_end(index);
        true
    }

    /// Removes and returns the chunk to evict next, as long as the budget is exceeded.
    pub(super) fn next_victim(&mut self) -> Option<usize> {
        while self.locked_bytes > self.budget_bytes {
            let (_, index) = self.order.pop_first()?;
            let chunk = &mut self.chunks[index];
            if chunk.skips_left > 0 {
                chunk.skips_left -= 1;
                self.move_to_end(index);
                continue;
            }
            let bytes = std::mem::take(&mut chunk.locked_bytes);
            self.locked_bytes -= bytes;
            self.evicted_bytes += bytes as u64;
            chunk.evicted_at = Some(self.evicted_bytes);
            return Some(index);
        }
        None
    }

    fn move_to_end(&mut self, index: usize) {
        self.chunks[index].turn = self.next_turn;
        self.order.insert(self.next_turn, index);
        self.next_turn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of the memory: touched chunks are faulted in, evicted ones are not.
    /// Chunks have 10 bytes.
    struct Model {
        clock: Clock,
        locked: Vec<bool>,
        evictions: Vec<usize>,
    }

    impl Model {
        fn new(chunk_count: usize, budget_chunks: usize) -> Self {
            Self {
                clock: Clock::new(chunk_count, 10 * budget_chunks),
                locked: vec![false; chunk_count],
                evictions: vec![0; chunk_count],
            }
        }

        fn touch(&mut self, indices: impl IntoIterator<Item = usize>) {
            indices
                .into_iter()
                .for_each(|index| self.locked[index] = true);
        }

        /// Makes a pass and returns the evicted chunks.
        fn pass(&mut self) -> Vec<usize> {
            for (index, &locked) in self.locked.iter().enumerate() {
                self.clock.update(index, if locked { 10 } else { 0 });
            }
            let evicted: Vec<_> = std::iter::from_fn(|| self.clock.next_victim()).collect();
            for &index in &evicted {
                self.locked[index] = false;
                self.evictions[index] += 1;
            }
            assert!(self.clock.locked_bytes <= self.clock.budget_bytes);
            assert_eq!(
                self.clock.locked_bytes,
                10 * self.locked.iter().filter(|&&locked| locked).count()
            );
            evicted
        }
    }

    #[test]
    fn victims_are_in_order_of_fault() {
        let mut model = Model::new(8, 3);
        for index in [5, 2, 7] {
            model.touch([index]);
            assert_eq!(model.pass(), []);
        }
        model.touch([0]);
        assert_eq!(model.pass(), [5]);
        model.touch([1, 3]);
        assert_eq!(model.pass(), [2, 7]);
    }

    #[test]
    fn grown_chunk_moves_to_the_end() {
        let mut clock = Clock::new(3, 10);
        assert!(clock.update(0, 4));
        assert!(clock.update(1, 4));
        assert!(clock.update(0, 5));
        assert!(!clock.update(0, 5));
        assert!(clock.update(2, 4));
        assert_eq!(clock.next_victim(), Some(1));
        assert_eq!(clock.next_victim(), None);
        // The kernel has dropped its pages.
        assert!(!clock.update(0, 0));
        assert!(clock.update(1, 9));
        assert_eq!(clock.next_victim(), Some(2));
    }

    #[test]
    fn hot_set_beside_cold_scan_is_rarely_evicted() {
        const HOT: usize = 80;
        let mut model = Model::new(2000, 100);
        let mut held = 0;
        let mut passes = 0;
        for step in 0..20_000 {
            model.touch(0..HOT);
            model.touch([HOT + step % (2000 - HOT)]);
            model.pass();
            if step > 10_000 {
                passes += 1;
                held += (0..HOT).filter(|&index| model.locked[index]).count();
            } else {
                model.evictions.fill(0);
            }
        }
        let evictions: usize = model.evictions[..HOT].iter().sum();
        assert!(held > passes * HOT * 98 / 100, "{held} in {passes} passes");
        assert!(
            evictions < passes,
            "{evictions} evictions in {passes} passes"
        );
    }

    #[test]
    fn hot_set_that_becomes_cold_is_evicted_for_the_next() {
        let mut model = Model::new(400, 100);
        for hot in [0..80, 100..180] {
            for step in 0..2_000 {
                model.touch(hot.clone());
                model.touch([200 + step % 200]);
                model.pass();
            }
            let held = hot.filter(|&index| model.locked[index]).count();
            assert!(held >= 78, "{held}");
        }
        assert_eq!((0..80).filter(|&index| model.locked[index]).count(), 0);
    }

    #[test]
    fn budget_holds_if_all_chunks_are_hot() {
        let mut model = Model::new(200, 100);
        for _ in 0..1_000 {
            model.touch(0..200);
            model.pass();
        }
        // All chunks are evicted about equally often.
        let fewest = model.evictions.iter().min().unwrap();
        let most = model.evictions.iter().max().unwrap();
        assert!(most - fewest < 100, "{fewest} to {most}");
    }

    #[test]
    fn budget_of_zero_evicts_all() {
        let mut model = Model::new(4, 0);
        model.touch(0..4);
        assert_eq!(model.pass(), [0, 1, 2, 3]);
        assert_eq!(model.pass(), []);
    }
}
