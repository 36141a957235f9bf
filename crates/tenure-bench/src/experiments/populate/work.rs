//! The ways of populating a kind of memory.

use std::ops::Range;

use rustix::mm::{Advice, MapFlags};
use tenure::populate::{PopulateOptions, Strategy};
use tenure::{Access, Error, Features};

use super::kind::Kind;
use crate::measure::prelude::*;

/// The figure that is compared.
pub const TIME: &str = "time";
/// The way that takes longest and shows least.
pub const READ_AND_WRITE: &str = "touch, Read+Write";
/// The length that the other thread maps and unmaps.
pub const PROBE_LEN: usize = 64 << 10;
const STRATEGIES: [(&str, Strategy); 5] = [
    ("Populate", Strategy::Populate),
    ("Touch", Strategy::Touch),
    ("ReadThenWrite", Strategy::ReadThenWrite),
    ("AllocateThenPopulate", Strategy::AllocateThenPopulate),
    ("ReadAheadThenPopulate", Strategy::ReadAheadThenPopulate),
];

/// A way of populating, and its name.
pub type Named = (&'static str, How);

/// A way of populating.
#[derive(Clone)]
pub enum How {
    /// Touching each page.
    Read,
    Write,
    ReadAndWrite,
    /// mmap with MAP_POPULATE.
    Map,
    Advise(Advice),
    Tenure(PopulateOptions),
}

#[derive(Clone)]
pub struct Work {
    pub kind: Kind,
    /// The length of the mapping.
    pub len: usize,
    /// Which of its bytes are populated: whole pages.
    pub part: Range<usize>,
    /// [`Access::Write`] only where the mapping is writable.
    pub access: Access,
    /// Whether another thread maps and unmaps meanwhile.
    pub is_probed: bool,
}

impl Work {
    /// Populates a mapping of `len` bytes, whole.
    pub fn whole(kind: Kind, len: usize, access: Access) -> Self {
        Self {
            kind,
            len,
            part: 0..len,
            access,
            is_probed: false,
        }
    }

    /// Populates the middle half of private anonymous memory.
    pub fn middle_half(len: usize, access: Access) -> Self {
        let mut work = Self::whole(Kind::PrivateBase, len, access);
        work.part = len / 4..len / 4 * 3;
        work
    }

    /// Returns the older ways that do nothing but this; the first one touches.
    pub fn older_ways(&self) -> Vec<Named> {
        let mut ways = match self.access {
            Access::Read => vec![("touch, Read", How::Read)],
            Access::Write => {
                let both = (READ_AND_WRITE, How::ReadAndWrite);
                vec![("touch, Write", How::Write), both]
            }
        };
        if self.part == (0..self.len) && self.kind.has_map_populate(self.access) {
            ways.push(("MAP_POPULATE", How::Map));
        }
        if Features::get().madv_populate.is_ok() {
            ways.push(match self.access {
                Access::Read => ("POPULATE_READ", How::Advise(Advice::LinuxPopulateRead)),
                Access::Write => ("POPULATE_WRITE", How::Advise(Advice::LinuxPopulateWrite)),
            });
        }
        ways
    }

    /// Returns tenure's strategies as far as they have a meaning here.
    pub fn strategies(&self) -> Result<Vec<Named>> {
        let mut ways = Vec::new();
        for (name, strategy) in STRATEGIES {
            // Reading must not allocate blocks, and this would do nothing else.
            let fills_holes = strategy == Strategy::AllocateThenPopulate
                && self.access == Access::Read
                && matches!(self.kind, Kind::FileWithHoles(_));
            let options = PopulateOptions::new(self.access).strategy(strategy);
            if !fills_holes && self.is_possible(&options)? {
                ways.push((name, How::Tenure(options)));
            }
        }
        Ok(ways)
    }

    /// Tries it with a small mapping.
    fn is_possible(&self, options: &PopulateOptions) -> Result<bool> {
        const SMALL: usize = 2 << 20;
        let mapping = self.kind.map_with_tenure(self.len.min(SMALL))?;
        match mapping.populate_with(.., options) {
            Ok(()) => Ok(true),
            Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns tenure's way with so many threads.
    pub fn with_threads(&self, threads: usize) -> How {
        How::Tenure(PopulateOptions::new(self.access).threads(threads))
    }

    /// Returns tenure's own choice.
    pub fn auto(&self) -> Named {
        let options = PopulateOptions::new(self.access);
        ("tenure Auto", How::Tenure(options))
    }

    /// Makes a mapping and populates it.
    pub fn populate(&self, how: &How) -> Result<Memory> {
        let part = self.part.clone();
        if let How::Tenure(options) = how {
            let mapping = self.kind.map_with_tenure(self.len)?;
            mapping.populate_with(part, options)?;
            return Ok(Memory::Tenure(mapping));
        }
        let flags = match how {
            How::Map => MapFlags::POPULATE,
            _ => MapFlags::empty(),
        };
        let mut mapping = self.kind.map_raw(self.len, flags)?;
        match how {
            How::Read => touch::read_each_page(&mapping.bytes()[part]),
            How::Write => self.write_each_page(mapping.bytes_mut()),
            How::ReadAndWrite => touch::read_and_write_each_page(&mut mapping.bytes_mut()[part]),
            How::Advise(advice) => mapping.advise_part(part, *advice)?,
            How::Map | How::Tenure(_) => {}
        }
        Ok(Memory::Raw(mapping))
    }

    /// Writes what is in the first byte of each page of the part.
    pub fn write_each_page(&self, bytes: &mut [u8]) {
        let first_page = self.part.start / tenure::page_size();
        let bytes = &mut bytes[self.part.clone()];
        match self.kind.content() {
            None => touch::write_each_page(bytes, |_| 0),
            Some(content) => {
                touch::write_each_page(bytes, |page| content.first_bytes[first_page + page]);
            }
        }
    }
}
