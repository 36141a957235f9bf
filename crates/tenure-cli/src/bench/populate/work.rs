//! What is to be populated, and the ways of doing it.

use std::ops::Range;

use anyhow::Result;
use rustix::mm::{Advice, MapFlags};
use tenure::{Access, Error, Features, Mapping, PopulateOptions, Strategy};

use super::{
    super::{
        experiment::{Recorder, Way},
        raw::RawMapping,
        touch,
    },
    check::check,
    kind::Kind,
};

/// The figure that is compared.
pub const TIME: &str = "time";
/// The name of touching by reading first.
pub const READ_AND_WRITE: &str = "touch, Read+Write";
/// The name of tenure's own choice.
pub const AUTO: &str = "tenure Auto";

const STRATEGIES: [(Strategy, &str); 5] = [
    (Strategy::Populate, "Populate"),
    (Strategy::Touch, "Touch"),
    (Strategy::ReadThenWrite, "ReadThenWrite"),
    (Strategy::AllocateThenPopulate, "AllocateThenPopulate"),
    (Strategy::ReadAheadThenPopulate, "ReadAheadThenPopulate"),
];

/// A populated mapping, however it was made.
pub enum Populated {
    /// With the plain system calls.
    Raw(RawMapping),
    /// With tenure.
    Tenure(Mapping),
}

impl Populated {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Raw(mapping) => mapping.bytes(),
            Self::Tenure(mapping) => mapping.as_slice(),
        }
    }

    /// Returns the bytes for writing.
    ///
    /// # Safety
    /// - The mapping was made writable.
    pub unsafe fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self {
            // SAFETY: writable says the caller.
            Self::Raw(mapping) => Ok(unsafe { mapping.bytes_mut() }),
            Self::Tenure(mapping) => Ok(mapping.as_mut_slice()?),
        }
    }
}

/// One way of making a mapping and populating it.
pub type Populate = Box<dyn Fn() -> Result<Populated>>;

/// What is to be populated.
#[derive(Clone)]
pub struct Work {
    /// The kind of memory.
    pub kind: Kind,
    /// The length of the mapping.
    pub len: usize,
    /// Which of its bytes are populated: whole pages.
    pub part: Range<usize>,
    /// For what. [`Access::Write`] only where the mapping is writable.
    pub access: Access,
}

impl Work {
    /// Populates a mapping of `len` bytes, whole.
    pub fn whole(kind: Kind, len: usize, access: Access) -> Self {
        Self {
            kind,
            len,
            part: 0..len,
            access,
        }
    }

    /// Populates the middle half of private anonymous memory.
    pub fn middle_half(len: usize, access: Access) -> Self {
        Self {
            part: len / 4..len / 4 * 3,
            ..Self::whole(Kind::PrivateBase, len, access)
        }
    }

    /// Returns the older ways that do nothing but this; the first one touches.
    pub fn older_ways(&self) -> Vec<(&'static str, Populate)> {
        let has_madvise = Features::get().madv_populate.is_ok();
        let mut ways: Vec<(&str, Populate)> = Vec::new();
        match self.access {
            Access::Read => ways.push((
                "touch, Read",
                self.touching(|work, mapping| {
                    touch::read_each_page(&mapping.bytes()[work.part.clone()]);
                }),
            )),
            Access::Write => {
                ways.push((
                    "touch, Write",
                    self.touching(|work, mapping| {
                        // SAFETY: what is populated for writing is writable.
                        work.write_each_page(unsafe { mapping.bytes_mut() });
                    }),
                ));
                ways.push((
                    READ_AND_WRITE,
                    self.touching(|work, mapping| {
                        // SAFETY: what is populated for writing is writable.
                        let bytes = unsafe { mapping.bytes_mut() };
                        touch::read_and_write_each_page(&mut bytes[work.part.clone()]);
                    }),
                ));
            }
        }
        if self.part == (0..self.len) && self.kind.has_map_populate(self.access) {
            ways.push(("MAP_POPULATE", self.by_mmap()));
        }
        if has_madvise {
            ways.push(match self.access {
                Access::Read => ("POPULATE_READ", self.by_madvise(Advice::LinuxPopulateRead)),
                Access::Write => (
                    "POPULATE_WRITE",
                    self.by_madvise(Advice::LinuxPopulateWrite),
                ),
            });
        }
        ways
    }

    /// Returns tenure's strategies as far as they have a meaning here.
    pub fn strategies(&self) -> Result<Vec<(&'static str, Populate)>> {
        let mut ways = Vec::new();
        for (strategy, name) in STRATEGIES {
            // Reading may not allocate blocks, and this would do nothing else.
            let fills_holes = strategy == Strategy::AllocateThenPopulate
                && self.access == Access::Read
                && matches!(self.kind, Kind::FileWithHoles(_));
            if fills_holes {
                continue;
            }
            let options = PopulateOptions::new(self.access).strategy(strategy);
            if self.is_possible(&options)? {
                ways.push((name, self.with_tenure(options)));
            }
        }
        Ok(ways)
    }

    /// Returns tenure's way of so many threads.
    pub fn with_threads(&self, threads: usize) -> Populate {
        self.with_tenure(PopulateOptions::new(self.access).threads(threads))
    }

    /// Returns tenure's way that chooses by itself.
    pub fn auto(&self) -> Populate {
        self.with_tenure(PopulateOptions::new(self.access))
    }

    /// Asks tenure with a small mapping.
    fn is_possible(&self, options: &PopulateOptions) -> Result<bool> {
        const SMALL: usize = 2 << 20;
        let mapping = self.kind.map_with_tenure(self.len.min(SMALL))?;
        match mapping.populate_with(.., options) {
            Ok(()) => Ok(true),
            Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn touching(&self, touch: fn(&Self, &mut RawMapping)) -> Populate {
        let work = self.clone();
        Box::new(move || {
            let mut mapping = work.kind.map_raw(work.len, MapFlags::empty())?;
            touch(&work, &mut mapping);
            Ok(Populated::Raw(mapping))
        })
    }

    fn by_mmap(&self) -> Populate {
        let work = self.clone();
        Box::new(move || {
            let mapping = work.kind.map_raw(work.len, MapFlags::POPULATE)?;
            Ok(Populated::Raw(mapping))
        })
    }

    fn by_madvise(&self, advice: Advice) -> Populate {
        let work = self.clone();
        Box::new(move || {
            let mut mapping = work.kind.map_raw(work.len, MapFlags::empty())?;
            mapping.advise_part(work.part.clone(), advice)?;
            Ok(Populated::Raw(mapping))
        })
    }

    fn with_tenure(&self, options: PopulateOptions) -> Populate {
        let work = self.clone();
        Box::new(move || {
            let mapping = work.kind.map_with_tenure(work.len)?;
            mapping.populate_with(work.part.clone(), &options)?;
            Ok(Populated::Tenure(mapping))
        })
    }

    /// Writes what stands in the first byte of each page of the part.
    pub fn write_each_page(&self, bytes: &mut [u8]) {
        let first_page = self.part.start / tenure::page_size();
        let bytes = &mut bytes[self.part.clone()];
        match self.kind.content() {
            None => touch::write_each_page(bytes, |_| 0),
            Some(content) => {
                touch::write_each_page(bytes, |page| content.first_byte(first_page + page));
            }
        }
    }

    /// Makes a way of which everything is timed, also the making of the mapping:
    /// MAP_POPULATE does both at once.
    pub fn way(&self, (name, populate): (&'static str, Populate)) -> Way {
        self.measured_way(name, move |recorder| recorder.time(TIME, &populate))
    }

    /// Makes a way that `measure`s by itself.
    pub fn measured_way(
        &self,
        name: &'static str,
        measure: impl Fn(&mut Recorder<'_>) -> Result<Populated> + 'static,
    ) -> Way {
        let (kind, work) = (self.kind.clone(), self.clone());
        Way::new(
            name,
            move || kind.reset(),
            move |blocks, recorder| Ok((measure(recorder)?, blocks)),
            move |(mut populated, blocks), _| {
                check(&mut populated, &work, blocks)?;
                drop(populated);
                // Nothing may be left to free while the next way is timed.
                Ok(tenure::drain(None)?)
            },
        )
    }
}
