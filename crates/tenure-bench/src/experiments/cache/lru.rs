//! The hit rate of an LRU of a fixed number of values, without the values.

/// No key.
const END: usize = usize::MAX;

/// Which keys an LRU has, in the order of their use.
pub struct Lru {
    /// The next newer and the next older key of each that is there.
    links: Vec<Option<[usize; 2]>>,
    newest: usize,
    oldest: usize,
    count: usize,
    capacity: usize,
}

impl Lru {
    /// Makes an empty one for keys below a number.
    pub fn new(keys: usize, capacity: usize) -> Self {
        Self {
            links: vec![None; keys],
            newest: END,
            oldest: END,
            count: 0,
            capacity: capacity.max(1),
        }
    }

    /// Looks the key up, and inserts it on a miss. Returns whether it was there.
    pub fn hit(&mut self, key: usize) -> bool {
        let is_hit = self.links[key].is_some();
        if is_hit {
            self.unlink(key);
        } else if self.count == self.capacity {
            self.unlink(self.oldest);
        }
        self.link(key);
        is_hit
    }

    fn link(&mut self, key: usize) {
        let older = std::mem::replace(&mut self.newest, key);
        self.links[key] = Some([END, older]);
        match self.links.get_mut(older).and_then(Option::as_mut) {
            Some(older) => older[0] = key,
            None => self.oldest = key,
        }
        self.count += 1;
    }

    fn unlink(&mut self, key: usize) {
        let Some([newer, older]) = self.links[key].take() else {
            return;
        };
        match self.links.get_mut(newer).and_then(Option::as_mut) {
            Some(newer) => newer[1] = older,
            None => self.newest = older,
        }
        match self.links.get_mut(older).and_then(Option::as_mut) {
            Some(older) => older[0] = newer,
            None => self.oldest = newer,
        }
        self.count -= 1;
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/cache/lru.rs"]
mod tests;
