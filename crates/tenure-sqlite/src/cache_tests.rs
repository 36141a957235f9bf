use std::cell::Cell;

use super::*;

const SIZE: usize = 200;

thread_local! {
    static SUPPLY: Cell<Supply> = const { Cell::new(Supply::Ample) };
    static SEEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// A cache that finds the supply which the test sets.
struct Scene {
    cache: Cache,
    next_key: u32,
    purged_before: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with_page(4096)
    }

    fn with_page(page_bytes: usize) -> Self {
        let sizes = Sizes::new(page_bytes, 208).unwrap();
        let mut cache = Cache::new(Kind::Volatile, sizes).unwrap();
        cache.find_supply = |bytes| {
            SEEN_BYTES.set(bytes);
            SUPPLY.get()
        };
        cache.set_size(SIZE);
        Self {
            cache,
            next_key: 1,
            purged_before: tenure::stats().sqlite_purged.calls,
        }
    }

    /// Has new pages used once each. Returns how many the cache holds then.
    fn use_pages(&mut self, count: usize, supply: Supply) -> usize {
        SUPPLY.set(supply);
        for _ in 0..count {
            let page = self.cache.fetch(self.next_key, Create::Always).unwrap();
            self.cache.unpin(page, false);
            self.next_key += 1;
        }
        self.cache.len()
    }

    /// Returns how many pages the machine's own pressure has purged, which the cache drops.
    fn purged(&self) -> usize {
        let purged = tenure::stats().sqlite_purged.calls - self.purged_before;
        usize::try_from(purged).unwrap()
    }
}

#[test]
fn cache_shrinks_to_its_size_while_memory_is_short_and_grows_again() {
    let mut scene = Scene::new();
    let grown = scene.use_pages(5 * SIZE, Supply::Ample);
    assert!(grown + scene.purged() >= 5 * SIZE, "{grown}");
    // One more is dropped with each new page, from the next look on.
    let half_shrunk = scene.use_pages(2 * SIZE, Supply::Short);
    assert!(half_shrunk < grown && half_shrunk > SIZE || scene.purged() > 0);
    let shrunk = scene.use_pages(3 * SIZE, Supply::Short);
    assert!(shrunk <= SIZE, "{shrunk}");
    let shrunk = scene.use_pages(SIZE, Supply::Short);
    assert!(shrunk + scene.purged() >= SIZE, "{shrunk}");
    let interval = SWEEP_INTERVAL as usize;
    let grown_again = scene.use_pages(4 * SIZE, Supply::Ample);
    assert!(grown_again + scene.purged() >= 5 * SIZE - interval);
}

#[test]
fn small_pages_count_as_the_memory_that_they_take() {
    let mut scene = Scene::with_page(512);
    scene.cache.set_size(4 * SIZE);
    let len = scene.use_pages(3 * SIZE, Supply::Ample) + scene.purged();
    let least_bytes = (len - SWEEP_INTERVAL as usize - scene.purged()) * tenure::page_size();
    assert!(SEEN_BYTES.get() >= least_bytes, "{}", SEEN_BYTES.get());
}

#[test]
fn cache_of_scarce_memory_keeps_its_length() {
    let mut scene = Scene::new();
    let before = scene.use_pages(5 * SIZE, Supply::Ample);
    let after = scene.use_pages(5 * SIZE, Supply::Scarce);
    assert!(after <= before + SWEEP_INTERVAL as usize, "{after}");
    assert!(after + scene.purged() >= before, "{after}");
    // The oldest have made way.
    assert!(scene.cache.index.get(1).is_none());
    assert!(scene.cache.index.get(scene.next_key - 1).is_some());
}

#[test]
fn cache_below_its_size_grows_while_memory_is_short() {
    let mut scene = Scene::new();
    for supply in [Supply::Short, Supply::Scarce] {
        let len = scene.use_pages(SIZE, supply);
        assert!(len + scene.purged() >= SIZE && len <= SIZE, "{len}");
        scene.cache.shrink();
    }
}
