//! Which chunk of the file is let go next: a clock over chunks in the order in
//! which they were last seen to come in. Decides only; knows no memory.

use std::collections::BTreeMap;

/// How many times the clock at most passes a chunk by before its next test.
/// With 8, of a hot set that fills nine tenths of the budget 0.9 chunks are
/// tested for each cold one that comes in; without passes it would be 5.6. More
/// would keep what has gone cold for longer.
const MOST_PASSES: u8 = 8;

/// The chunks that have locked pages, in the order in which they are tested.
///
/// To let a chunk go *is* to test it: only one that is used again comes back,
/// and nothing is known of the use of a chunk that is in. A chunk that comes
/// back before as much as the budget was let go after it was let go in vain. It
/// is passed by from then on: once, then twice, four times, and so on, before it
/// is tested again, so that a hot chunk costs little. Passes run out, so that a
/// chunk that has gone cold goes in the end, and a clock of hot chunks only
/// still finds one to let go.
pub(super) struct Queue {
    budget_bytes: usize,
    locked_bytes: usize,
    /// All that has been let go so far: the clock by which "soon" is measured.
    let_go_bytes: u64,
    chunks: Vec<Chunk>,
    /// Chunks by their turns: the first is tested next.
    order: BTreeMap<u64, usize>,
    next_turn: u64,
}

#[derive(Clone, Copy, Default)]
struct Chunk {
    locked_bytes: usize,
    /// Its key in the order, while it has locked bytes.
    turn: u64,
    /// What `let_go_bytes` was when it was last let go.
    let_go_at: Option<u64>,
    /// How many times it is passed by after each return.
    passes: u8,
    /// How many times of these are left.
    passes_left: u8,
}

impl Queue {
    pub(super) fn new(chunk_count: usize, budget_bytes: usize) -> Self {
        Self {
            budget_bytes,
            locked_bytes: 0,
            let_go_bytes: 0,
            chunks: vec![Chunk::default(); chunk_count],
            order: BTreeMap::new(),
            next_turn: 0,
        }
    }

    /// How much of a chunk was locked when it was last seen.
    pub(super) fn locked_bytes(&self, index: usize) -> usize {
        self.chunks[index].locked_bytes
    }

    /// Notes how much of a chunk is locked now. What has grown was used since
    /// it was last seen, and goes to the end. Returns whether it has.
    pub(super) fn see(&mut self, index: usize, locked_bytes: usize) -> bool {
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
            let soon = chunk
                .let_go_at
                .is_some_and(|let_go_at| self.let_go_bytes - let_go_at <= self.budget_bytes as u64);
            chunk.passes = match soon {
                true => (chunk.passes * 2).clamp(1, MOST_PASSES),
                false => 0,
            };
            chunk.passes_left = chunk.passes;
        }
        self.put_last(index);
        true
    }

    /// Takes out the chunk to let go next, as long as the budget is exceeded.
    pub(super) fn next_over_budget(&mut self) -> Option<usize> {
        while self.locked_bytes > self.budget_bytes {
            let (_, index) = self.order.pop_first()?;
            let chunk = &mut self.chunks[index];
            if chunk.passes_left > 0 {
                chunk.passes_left -= 1;
                self.put_last(index);
                continue;
            }
            let bytes = std::mem::take(&mut chunk.locked_bytes);
            self.locked_bytes -= bytes;
            self.let_go_bytes += bytes as u64;
            chunk.let_go_at = Some(self.let_go_bytes);
            return Some(index);
        }
        None
    }

    fn put_last(&mut self, index: usize) {
        self.chunks[index].turn = self.next_turn;
        self.order.insert(self.next_turn, index);
        self.next_turn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory as the queue sees it: what is touched comes in, what is let go is
    /// out. Chunks have 10 bytes.
    struct Model {
        queue: Queue,
        locked: Vec<bool>,
        tests: Vec<usize>,
    }

    impl Model {
        fn new(chunk_count: usize, budget_chunks: usize) -> Self {
            Self {
                queue: Queue::new(chunk_count, 10 * budget_chunks),
                locked: vec![false; chunk_count],
                tests: vec![0; chunk_count],
            }
        }

        fn touch(&mut self, indices: impl IntoIterator<Item = usize>) {
            indices
                .into_iter()
                .for_each(|index| self.locked[index] = true);
        }

        /// Returns what was let go.
        fn look(&mut self) -> Vec<usize> {
            for (index, &locked) in self.locked.iter().enumerate() {
                self.queue.see(index, if locked { 10 } else { 0 });
            }
            let gone: Vec<_> = std::iter::from_fn(|| self.queue.next_over_budget()).collect();
            for &index in &gone {
                self.locked[index] = false;
                self.tests[index] += 1;
            }
            assert!(self.queue.locked_bytes <= self.queue.budget_bytes);
            assert_eq!(
                self.queue.locked_bytes,
                10 * self.locked.iter().filter(|&&locked| locked).count()
            );
            gone
        }
    }

    #[test]
    fn lets_go_in_the_order_of_coming_in() {
        let mut model = Model::new(8, 3);
        for index in [5, 2, 7] {
            model.touch([index]);
            assert_eq!(model.look(), []);
        }
        model.touch([0]);
        assert_eq!(model.look(), [5]);
        model.touch([1, 3]);
        assert_eq!(model.look(), [2, 7]);
    }

    #[test]
    fn what_grows_is_in_use() {
        let mut queue = Queue::new(3, 10);
        assert!(queue.see(0, 4));
        assert!(queue.see(1, 4));
        assert!(queue.see(0, 5));
        assert!(!queue.see(0, 5));
        assert!(queue.see(2, 4));
        assert_eq!(queue.next_over_budget(), Some(1));
        assert_eq!(queue.next_over_budget(), None);
        // Dropped behind the queue's back.
        assert!(!queue.see(0, 0));
        assert!(queue.see(1, 9));
        assert_eq!(queue.next_over_budget(), Some(2));
    }

    #[test]
    fn a_hot_set_is_hardly_tested_beside_a_cold_scan() {
        const HOT: usize = 80;
        let mut model = Model::new(2000, 100);
        let mut held = 0;
        let mut looks = 0;
        for step in 0..20_000 {
            model.touch(0..HOT);
            model.touch([HOT + step % (2000 - HOT)]);
            model.look();
            if step > 10_000 {
                looks += 1;
                held += (0..HOT).filter(|&index| model.locked[index]).count();
            } else {
                model.tests.fill(0);
            }
        }
        let tests: usize = model.tests[..HOT].iter().sum();
        assert!(held > looks * HOT * 98 / 100, "{held} in {looks} looks");
        assert!(tests < looks, "{tests} tests in {looks} looks");
    }

    #[test]
    fn a_hot_set_that_has_gone_cold_makes_room_for_the_next() {
        let mut model = Model::new(400, 100);
        for hot in [0..80, 100..180] {
            for step in 0..2_000 {
                model.touch(hot.clone());
                model.touch([200 + step % 200]);
                model.look();
            }
            let held = hot.filter(|&index| model.locked[index]).count();
            assert!(held >= 78, "{held}");
        }
        assert_eq!((0..80).filter(|&index| model.locked[index]).count(), 0);
    }

    #[test]
    fn the_budget_holds_though_all_is_hot() {
        let mut model = Model::new(200, 100);
        for _ in 0..1_000 {
            model.touch(0..200);
            model.look();
        }
        // They take turns.
        let fewest = model.tests.iter().min().unwrap();
        let most = model.tests.iter().max().unwrap();
        assert!(most - fewest < 100, "{fewest} to {most}");
    }

    #[test]
    fn no_budget_holds_nothing() {
        let mut model = Model::new(4, 0);
        model.touch(0..4);
        assert_eq!(model.look(), [0, 1, 2, 3]);
        assert_eq!(model.look(), []);
    }
}
