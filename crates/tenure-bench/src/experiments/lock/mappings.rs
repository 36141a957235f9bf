//! How many mappings the ways need that lock page by page, and vm.max_map_count, which
//! limits them.

use std::{fs, path::Path, rc::Rc};

use crate::{machine::restore::Setting, measure::prelude::*};

const SETTING: &str = "vm.max_map_count";
/// For what the process maps while it measures: threads, buffers, libraries.
const RESERVE: u64 = 200;

/// Returns how many mappings a range of `pages` pages is split into at the most while the
/// pages `touched` are opened one after the other, `step` of them at a time: neighbours
/// that are both open, or both not, are one mapping.
pub fn peak(pages: usize, step: usize, touched: impl Iterator<Item = usize>) -> u64 {
    let mut is_open = vec![false; pages];
    let (mut mappings, mut peak) = (1, 1);
    for page in touched {
        if is_open[page] {
            continue;
        }
        let end = (page + step).min(pages);
        let with_neighbours = page.saturating_sub(1)..(end + 1).min(pages);
        let edges = |is_open: &[bool]| {
            let pairs = is_open[with_neighbours.clone()].windows(2);
            pairs.filter(|pair| pair[0] != pair[1]).count()
        };
        let before = edges(&is_open);
        is_open[page..end].fill(true);
        mappings = mappings + edges(&is_open) - before;
        // Pages that were opened are apart from their neighbours until they are locked.
        peak = peak.max(mappings + step + 1);
    }
    peak as u64
}

/// The limit, raised where that is possible, and the ways that need many mappings.
pub struct MappingHeadroom {
    limit: Rc<Setting>,
    /// How many mappings the process has, and a reserve.
    used: u64,
    /// The name of each way and how many mappings it needs.
    pub needs: Vec<(&'static str, u64)>,
}

impl MappingHeadroom {
    /// Raises the limit to what the ways need, if the process is allowed to.
    pub fn make(needs: Vec<(&'static str, u64)>) -> Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps").context("reading /proc/self/maps")?;
        let used = maps.lines().count() as u64 + RESERVE;
        Self::at(Path::new("/proc/sys/vm/max_map_count"), used, needs)
    }

    pub fn at(file: &Path, used: u64, needs: Vec<(&'static str, u64)>) -> Result<Self> {
        let max = needs.iter().map(|need| need.1).max();
        let limit = Setting::raise(file, SETTING, |_| Ok(used + max.unwrap_or(0)))?;
        let limit = Rc::new(limit);
        Ok(Self { limit, used, needs })
    }

    /// Returns what has to be kept for as long as the ways are used.
    pub fn limit(&self) -> Rc<Setting> {
        self.limit.clone()
    }

    /// Says whether the way called `name` has the mappings that it needs.
    pub fn lets_finish(&self, name: &str) -> bool {
        self.refused().all(|need| need.0 != name)
    }

    /// Says what was changed for the run, and which ways cannot finish.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let limit = count_text(self.limit.now as f64);
        if self.limit.is_raised() {
            notes.push(format!("{SETTING} was raised to {limit} for the run."));
        }
        if let Some(max) = self.refused().map(|need| need.1).max() {
            let names: Vec<&str> = self.refused().map(|need| need.0).collect();
            let (names, needed) = (names.join("; "), self.used + max);
            notes.push(format!(
                "Cannot finish and are left out: {names}. {SETTING} is {limit}, up to {} \
                 mappings are needed, and only root may raise it (sysctl -w {SETTING}={needed}).",
                count_text(needed as f64)
            ));
        }
        notes
    }

    fn refused(&self) -> impl Iterator<Item = &(&'static str, u64)> {
        let is_refused = |need: &&(_, u64)| self.used + need.1 > self.limit.now;
        self.needs.iter().filter(is_refused)
    }
}
