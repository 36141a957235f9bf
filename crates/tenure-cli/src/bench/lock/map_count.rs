//! How many mappings the ways need that lock page by page, and
//! vm.max_map_count, which limits them.

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context as _, Result};

use super::super::put_back::PutBack;
use crate::text::count_text;

/// The setting.
const SETTING: &str = "vm.max_map_count";
/// For what the process maps while it measures: threads, buffers, libraries.
const RESERVE: u64 = 200;

/// Returns how many mappings a range of `pages` pages is split into at the most
/// while the pages `touched` are opened one after the other, `step` of them at a
/// time: neighbours that are both open, or both not, are one mapping.
pub fn peak(pages: usize, step: usize, touched: impl Iterator<Item = usize>) -> u64 {
    let mut is_open = vec![false; pages];
    let (mut mappings, mut peak) = (1, 1);
    for page in touched {
        if is_open[page] {
            continue;
        }
        let end = (page + step).min(pages);
        let edges = |is_open: &[bool]| {
            let with_neighbours = &is_open[page.saturating_sub(1)..(end + 1).min(pages)];
            let pairs = with_neighbours.windows(2);
            pairs.filter(|pair| pair[0] != pair[1]).count()
        };
        let before = edges(&is_open);
        is_open[page..end].fill(true);
        mappings = mappings + edges(&is_open) - before;
        // What has been opened is apart from its neighbours until it is locked.
        peak = peak.max(mappings + step + 1);
    }
    peak as u64
}

/// The limit of this process, raised for as long as this lives where possible.
pub struct MapCount {
    /// How many mappings a process may have.
    limit: u64,
    /// How many this one has already, and a reserve.
    used: u64,
    put_back: Option<PutBack>,
}

impl MapCount {
    /// Sees to it that a range may be split into `mappings`, if the process is
    /// allowed to raise the limit.
    fn with_room(mappings: u64) -> Result<Self> {
        let file = PathBuf::from("/proc/sys").join(SETTING.replace('.', "/"));
        let maps = fs::read_to_string("/proc/self/maps").context("reading /proc/self/maps")?;
        Self::at(&file, mappings, maps.lines().count() as u64 + RESERVE)
    }

    fn at(file: &Path, mappings: u64, used: u64) -> Result<Self> {
        let limit = read(file)?;
        let mut map_count = Self {
            limit,
            used,
            put_back: None,
        };
        // Opening for writing tells without a trace whether it is allowed.
        let is_allowed = || fs::OpenOptions::new().write(true).open(file).is_ok();
        if map_count.needed_for(mappings) > limit && is_allowed() {
            // From here on an error drops this and so puts the limit back.
            map_count.put_back = Some(PutBack::at_the_end(file, limit, SETTING)?);
            fs::write(file, map_count.needed_for(mappings).to_string())
                .with_context(|| format!("raising {SETTING}"))?;
            map_count.limit = read(file)?;
        }
        Ok(map_count)
    }

    /// Says whether a range may be split into `mappings`.
    fn allows(&self, mappings: u64) -> bool {
        self.needed_for(mappings) <= self.limit
    }

    /// Says that the limit was raised.
    fn note(&self) -> Option<String> {
        let limit = count_text(self.limit as f64);
        self.put_back
            .as_ref()
            .map(|_| format!("{SETTING} was raised to {limit} for the run."))
    }

    /// Says why `ways` are left out, which need to split a range into `mappings`.
    fn refusal(&self, ways: &[&str], mappings: u64) -> String {
        let needed = self.needed_for(mappings);
        format!(
            "Cannot finish and are left out: {}. {SETTING} is {}, up to {} mappings are needed, and \
             only root may raise it (sysctl -w {SETTING}={needed}).",
            ways.join("; "),
            count_text(self.limit as f64),
            count_text(needed as f64)
        )
    }

    fn needed_for(&self, mappings: u64) -> u64 {
        self.used + mappings
    }
}

/// The limit, and the ways that split a range into many mappings.
pub struct RoomForMappings {
    limit: Rc<MapCount>,
    /// The name of each such way and how many mappings it needs.
    needs: Vec<(&'static str, u64)>,
}

impl RoomForMappings {
    /// Makes room for what each way needs, as far as that is possible.
    pub fn make(needs: &[(&'static str, u64)]) -> Result<Self> {
        let most = needs.iter().map(|need| need.1).max();
        Ok(Self {
            limit: Rc::new(MapCount::with_room(most.unwrap_or(0))?),
            needs: needs.to_vec(),
        })
    }

    /// Returns what has to be kept for as long as the ways are used.
    pub fn limit(&self) -> Rc<MapCount> {
        self.limit.clone()
    }

    /// Says whether the way called `name` has the mappings that it needs.
    pub fn lets_finish(&self, name: &str) -> bool {
        let mut needs = self.needs.iter().filter(|need| need.0 == name);
        needs.all(|&(_, mappings)| self.limit.allows(mappings))
    }

    /// Says what was changed for the run, and which ways cannot finish.
    pub fn notes(&self) -> Vec<String> {
        let refused = || self.needs.iter().filter(|need| !self.lets_finish(need.0));
        let names: Vec<&str> = refused().map(|need| need.0).collect();
        let most = refused().map(|need| need.1).max();
        let refusal = most.map(|most| self.limit.refusal(&names, most));
        self.limit.note().into_iter().chain(refusal).collect()
    }
}

fn read(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} is no number", file.display()))
}

#[cfg(test)]
mod tests {
    use tenure::page_size;

    use super::*;
    use crate::bench::{fault_handler::LockedOnTouch, files};

    #[test]
    fn neighbours_that_are_open_are_one_mapping() {
        let peak = |step, touched: &[usize]| peak(8, step, touched.iter().copied());
        // What stays is 1 + 2 for each page that lies apart; 2 more come and go.
        assert_eq!(peak(1, &[]), 1);
        assert_eq!(peak(1, &[3]), 3 + 2);
        assert_eq!(peak(1, &[3, 3]), 3 + 2);
        assert_eq!(peak(1, &[3, 5]), 5 + 2);
        assert_eq!(peak(1, &[3, 4, 5]), 3 + 2);
        assert_eq!(peak(1, &[0]), 2 + 2, "no neighbour before it");
        assert_eq!(peak(1, &[3, 5, 4]), 5 + 2, "the peak counts, not the end");
        assert_eq!(peak(8, &[0]), 1 + 9);
        assert_eq!(peak(4, &[6, 5]), 2 + 5, "up to the end of the range");
    }

    fn limit(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_limit_with_room_is_left_alone() {
        let file = limit("65530\n");
        let map_count = MapCount::at(file.path(), 65_430, 100).unwrap();
        assert_eq!(map_count.note(), None);
        assert!(map_count.allows(65_430) && !map_count.allows(65_431));
    }

    #[test]
    fn a_low_limit_is_raised_and_put_back() {
        let file = limit("65530\n");
        let map_count = MapCount::at(file.path(), 65_431, 100).unwrap();
        assert_eq!(read(file.path()).unwrap(), 65_531);
        assert!(map_count.allows(65_431));
        let note = "vm.max_map_count was raised to 65,531 for the run.";
        assert_eq!(map_count.note().unwrap(), note);
        drop(map_count);
        assert_eq!(read(file.path()).unwrap(), 65_530);
    }

    #[test]
    fn the_reader_is_told_what_cannot_finish_and_what_to_do() {
        let map_count = MapCount {
            limit: 65_530,
            used: 100,
            put_back: None,
        };
        let room = RoomForMappings {
            limit: Rc::new(map_count),
            needs: vec![("small", 65_430), ("each", 99_900), ("handler", 99_000)],
        };
        let can_finish = ["small", "each", "handler", "plain"].map(|name| room.lets_finish(name));
        assert_eq!(can_finish, [true, false, false, true]);
        assert_eq!(
            room.notes(),
            [
                "Cannot finish and are left out: each; handler. vm.max_map_count is 65,530, up to \
                 100,000 mappings are needed, and only root may raise it (sysctl -w \
                 vm.max_map_count=100000)."
            ]
        );
    }

    #[test]
    fn the_kernel_splits_and_joins_as_counted() {
        let (pages, touched) = (32, [3, 9, 4, 20, 31, 8, 0]);
        let page = page_size();
        let file = files::random_file(pages * page, &mut fastrand::Rng::with_seed(1)).unwrap();
        // SAFETY: the file is ours alone.
        let mapping = unsafe { files::map_for_reading(&file, pages * page) }.unwrap();
        let (start, end) = (mapping.start(), mapping.start() + pages * page);
        let guarded = LockedOnTouch::new(mapping, 2 * page).unwrap();
        let mut most = 0;
        for &index in &touched {
            // SAFETY: inside the mapping; the handler admits the page.
            unsafe { guarded.as_ptr().add(index * page).read_volatile() };
            let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
            let is_part = |map: &&procfs::process::MemoryMap| {
                map.address.0 >= start as u64 && map.address.1 <= end as u64
            };
            most = most.max(maps.iter().filter(is_part).count());
        }
        guarded.check().unwrap();
        let reserve = 3;
        assert_eq!(peak(pages, 2, touched.into_iter()), most as u64 + reserve);
    }

    #[test]
    fn the_kernel_has_the_setting() {
        assert!(MapCount::with_room(1).unwrap().allows(1));
    }
}
