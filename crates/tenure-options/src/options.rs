//! The values of the options.

use core::time::Duration;
use core::{fmt, str};

use crate::duration::{DurationError, parse_duration};
use crate::size::{SizeError, parse_size};
use crate::table::{Kind, OptionName, OptionRow, TABLE};

/// The default size from which requests go to the heap: all.
pub const HEAP_THRESHOLD_BYTES: usize = 0;

/// The value with which every option is as if it were not set.
pub const OFF: &str = "off";

/// The options in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size from which requests go to tenure's heap, in bytes.
    pub heap_threshold_bytes: Option<usize>,
    /// How long the heap keeps free pages dirty, if not as long as by default.
    pub heap_dirty_decay: Option<Duration>,
    /// How long the heap keeps free pages muzzy, if not as long as by default.
    pub heap_muzzy_decay: Option<Duration>,
    /// `munmap` is deferred.
    pub munmap: bool,
    /// `madvise(MADV_DONTNEED)` is deferred.
    pub discard: bool,
    /// All memory is locked on fault.
    pub lock: bool,
    /// The size from which new mappings are populated, in bytes.
    pub populate_bytes: Option<usize>,
    /// The size of the page pool, in bytes.
    pub pool_bytes: Option<usize>,
    /// Memory that is freed in the background enters the page pool.
    pub pool_released: bool,
    /// The process's memory is freed after its end has been reported.
    pub exit: bool,
    /// SQLite uses the page cache of the crate tenure-sqlite.
    pub sqlite_cache: bool,
    /// A summary is printed at the end.
    pub stats: bool,
    /// A line is printed at the start.
    pub verbose: bool,
}

impl Options {
    /// No option is set.
    pub const OFF: Self = Self {
        heap_threshold_bytes: None,
        heap_dirty_decay: None,
        heap_muzzy_decay: None,
        munmap: false,
        discard: false,
        lock: false,
        populate_bytes: None,
        pool_bytes: None,
        pool_released: false,
        exit: false,
        sqlite_cache: false,
        stats: false,
        verbose: false,
    };

    /// Returns whether an option concerns `mmap` and its relatives.
    pub fn wants_mappings(&self) -> bool {
        self.munmap || self.discard || self.populate_bytes.is_some() || self.pool_bytes.is_some()
    }

    /// Returns the options without those that concern `mmap` and its relatives.
    pub fn without_mappings(self) -> Self {
        Self {
            munmap: false,
            discard: false,
            populate_bytes: None,
            pool_bytes: None,
            pool_released: false,
            ..self
        }
    }

    /// Reads the options from the variables that `value_of` returns. An empty value
    /// counts as unset. An invalid value is passed to `report_invalid`, and its option
    /// counts as unset.
    ///
    /// ```
    /// use tenure_options::Options;
    ///
    /// let value_of = |name: &str| (name == "TENURE_HEAP").then_some(&b"1"[..]);
    /// let options = Options::read(value_of, |row, _, error| panic!("{}: {error}", row.variable));
    /// assert_eq!(options.heap_threshold_bytes, Some(0));
    /// ```
    pub fn read<'a>(
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
        mut report_invalid: impl FnMut(&'static OptionRow, &'a [u8], ValueError),
    ) -> Self {
        let mut options = Self::OFF;
        // `TENURE_HEAP=0` overrides the heap's other options.
        let mut heap = None;
        for row in &TABLE {
            let Some(text) = value_of(row.variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            // No option accepts an empty text.
            let value = match row.value(str::from_utf8(text).unwrap_or_default()) {
                Ok(value) => value,
                Err(error) => {
                    report_invalid(row, text, error);
                    continue;
                }
            };
            match (row.name, value) {
                (_, Value::Unset) => {}
                (OptionName::Heap, Value::On(is_on)) => heap = Some(is_on),
                (OptionName::HeapThreshold, Value::Bytes(bytes)) => {
                    options.heap_threshold_bytes = Some(bytes);
                }
                (OptionName::HeapDirtyDecay, Value::Duration(decay)) => {
                    options.heap_dirty_decay = Some(decay);
                }
                (OptionName::HeapMuzzyDecay, Value::Duration(decay)) => {
                    options.heap_muzzy_decay = Some(decay);
                }
                (OptionName::Munmap, Value::On(is_on)) => options.munmap = is_on,
                (OptionName::Discard, Value::On(is_on)) => options.discard = is_on,
                (OptionName::Lock, Value::On(is_on)) => options.lock = is_on,
                (OptionName::Populate, Value::Bytes(bytes)) => {
                    options.populate_bytes = Some(bytes);
                }
                (OptionName::Pool, Value::Bytes(bytes)) => options.pool_bytes = Some(bytes),
                (OptionName::PoolReleased, Value::On(is_on)) => options.pool_released = is_on,
                (OptionName::Exit, Value::On(is_on)) => options.exit = is_on,
                (OptionName::SqliteCache, Value::On(is_on)) => options.sqlite_cache = is_on,
                (OptionName::Stats, Value::On(is_on)) => options.stats = is_on,
                (OptionName::Verbose, Value::On(is_on)) => options.verbose = is_on,
                // The table gives each option's kind, so no other pair occurs.
                (_, Value::On(_)) => {
                    report_invalid(row, text, ValueError::Size(SizeError::NotASize))
                }
                (_, Value::Bytes(_) | Value::Duration(_)) => {
                    report_invalid(row, text, ValueError::NotASwitch)
                }
            }
        }
        options.with_heap(heap)
    }

    /// Returns the options with the heap as `TENURE_HEAP` says; unless it is 0, each other
    /// option of the heap turns it on.
    fn with_heap(self, heap: Option<bool>) -> Self {
        let is_set = self.heap_threshold_bytes.is_some()
            || self.heap_dirty_decay.is_some()
            || self.heap_muzzy_decay.is_some();
        if heap.unwrap_or(is_set) {
            let threshold = self.heap_threshold_bytes.unwrap_or(HEAP_THRESHOLD_BYTES);
            return Self {
                heap_threshold_bytes: Some(threshold),
                ..self
            };
        }
        Self {
            heap_threshold_bytes: None,
            heap_dirty_decay: None,
            heap_muzzy_decay: None,
            ..self
        }
    }
}

enum Value {
    /// As if the option were not set.
    Unset,
    On(bool),
    Bytes(usize),
    Duration(Duration),
}

/// The reason why an option cannot have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// The option is a switch: 0 or 1.
    NotASwitch,
    /// This is the option's only value.
    OnlyValue(&'static str),
    /// The text is not a size.
    Size(SizeError),
    /// The size is less than the option's minimum, in bytes.
    BelowMinimum(usize),
    /// The text is not a duration.
    Duration(DurationError),
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASwitch => f.write_str("give 1 or 0"),
            Self::OnlyValue(word) => write!(f, "the only value is {word}, or off"),
            Self::Size(error) => error.fmt(f),
            Self::Duration(error) => error.fmt(f),
            Self::BelowMinimum(1) => f.write_str("the minimum is 1 byte"),
            Self::BelowMinimum(min_bytes) => write!(f, "the minimum is {min_bytes} bytes"),
        }
    }
}

impl core::error::Error for ValueError {}

impl OptionRow {
    /// Checks whether the option can be set to this value.
    ///
    /// # Errors
    ///
    /// [`ValueError`] when it cannot.
    pub fn check(&self, text: &str) -> Result<(), ValueError> {
        self.value(text).map(drop)
    }

    fn value(&self, text: &str) -> Result<Value, ValueError> {
        match self.kind {
            _ if text == OFF => Ok(Value::Unset),
            Kind::Switch if text == "1" => Ok(Value::On(true)),
            Kind::Switch if text == "0" => Ok(Value::On(false)),
            Kind::Switch => Err(ValueError::NotASwitch),
            Kind::Word(word) if text == word => Ok(Value::On(true)),
            Kind::Word(word) => Err(ValueError::OnlyValue(word)),
            Kind::Size { min_bytes } => match parse_size(text).map_err(ValueError::Size)? {
                bytes if bytes < min_bytes => Err(ValueError::BelowMinimum(min_bytes)),
                bytes => Ok(Value::Bytes(bytes)),
            },
            Kind::Duration => parse_duration(text)
                .map(Value::Duration)
                .map_err(ValueError::Duration),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::borrow::ToOwned as _;
    use std::string::ToString as _;
    use std::vec::Vec;

    fn read(environment: &[(&str, &'static str)]) -> (Options, Vec<&'static str>) {
        let mut wrong = Vec::new();
        let value_of = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_bytes())
        };
        let options = Options::read(value_of, |row, _, _| wrong.push(row.variable));
        (options, wrong)
    }

    #[test]
    fn every_variable_sets_its_option() {
        let everything = [
            ("TENURE_HEAP", "1"),
            ("TENURE_HEAP_THRESHOLD", "64K"),
            ("TENURE_HEAP_DIRTY_DECAY", "100ms"),
            ("TENURE_HEAP_MUZZY_DECAY", "0"),
            ("TENURE_MUNMAP", "background"),
            ("TENURE_DISCARD", "background"),
            ("TENURE_LOCK", "onfault"),
            ("TENURE_POPULATE", "1M"),
            ("TENURE_POOL", "1G"),
            ("TENURE_POOL_RELEASED", "1"),
            ("TENURE_EXIT", "background"),
            ("TENURE_SQLITE_CACHE", "1"),
            ("TENURE_STATS", "1"),
            ("TENURE_VERBOSE", "1"),
        ];
        assert_eq!(everything.len(), TABLE.len());
        let all_on = Options {
            heap_threshold_bytes: Some(64 << 10),
            heap_dirty_decay: Some(Duration::from_millis(100)),
            heap_muzzy_decay: Some(Duration::ZERO),
            munmap: true,
            discard: true,
            lock: true,
            populate_bytes: Some(1 << 20),
            pool_bytes: Some(1 << 30),
            pool_released: true,
            exit: true,
            sqlite_cache: true,
            stats: true,
            verbose: true,
        };
        assert_eq!(read(&everything), (all_on, Vec::new()));
        assert_eq!(read(&[]), (Options::OFF, Vec::new()));
    }

    #[test]
    fn wants_mappings_is_true_for_mapping_options() {
        for (variable, value, wanted) in [
            ("TENURE_MUNMAP", "background", true),
            ("TENURE_DISCARD", "background", true),
            ("TENURE_POPULATE", "1M", true),
            ("TENURE_POOL", "1G", true),
            ("TENURE_HEAP", "1", false),
        ] {
            let (options, _) = read(&[(variable, value)]);
            assert_eq!(options.wants_mappings(), wanted, "{variable}");
            assert_eq!(options.without_mappings() == Options::OFF, wanted);
        }
    }

    #[test]
    fn empty_value_and_off_are_unset() {
        for unset in ["", OFF] {
            let unset: Vec<_> = TABLE.iter().map(|row| (row.variable, unset)).collect();
            assert_eq!(read(&unset), (Options::OFF, Vec::new()));
        }
    }

    #[test]
    fn invalid_value_is_reported_and_ignored() {
        for (variable, value) in [
            ("TENURE_HEAP", "yes"),
            ("TENURE_HEAP_THRESHOLD", "many"),
            ("TENURE_HEAP_DIRTY_DECAY", "5"),
            ("TENURE_HEAP_MUZZY_DECAY", "1.5s"),
            ("TENURE_MUNMAP", "1"),
            ("TENURE_LOCK", "now"),
            ("TENURE_POPULATE", "0"),
        ] {
            let (options, wrong) = read(&[(variable, value)]);
            assert_eq!(options, Options::OFF, "{variable}={value}");
            assert_eq!(wrong, [variable]);
        }
    }

    #[test]
    fn refused_value_names_its_reason() {
        let check = |flag: &str, text| {
            let row = TABLE.iter().find(|row| row.flag == flag).unwrap();
            row.check(text).map_err(|error| error.to_string())
        };
        for (flag, text, reason) in [
            (
                "populate",
                "99999999T",
                "the size is more bytes than there are addresses",
            ),
            (
                "populate",
                "many",
                "give a size in bytes, K, M, G or T, such as 65536, 64K or 1.5G",
            ),
            (
                "populate",
                "1.5",
                "a fraction needs a unit: K, M, G or T, as in 1.5G",
            ),
            ("populate", "0", "the minimum is 1 byte"),
            ("munmap", "1", "the only value is background, or off"),
            ("stats", "yes", "give 1 or 0"),
            (
                "heap-muzzy-decay",
                "5",
                "give a duration in whole ms, s, min or h, such as 500ms or 5s, or 0",
            ),
        ] {
            assert_eq!(check(flag, text), Err(reason.to_owned()), "{flag}={text}");
        }
        for text in ["1.5G", "1GB", "65536"] {
            assert_eq!(check("populate", text), Ok(()), "{text}");
        }
    }

    #[test]
    fn threshold_without_heap_0_turns_heap_on() {
        let threshold = |environment: &[_]| read(environment).0.heap_threshold_bytes;
        let row = ("TENURE_HEAP_THRESHOLD", "1M");
        assert_eq!(threshold(&[row]), Some(1 << 20));
        assert_eq!(threshold(&[row, ("TENURE_HEAP", "0")]), None);
        assert_eq!(
            threshold(&[("TENURE_HEAP", "1")]),
            Some(HEAP_THRESHOLD_BYTES)
        );
    }

    #[test]
    fn decay_turns_heap_on_unless_heap_is_0() {
        for (variable, value) in [
            ("TENURE_HEAP_DIRTY_DECAY", "1s"),
            ("TENURE_HEAP_MUZZY_DECAY", "0"),
        ] {
            let (options, _) = read(&[(variable, value)]);
            assert_eq!(options.heap_threshold_bytes, Some(HEAP_THRESHOLD_BYTES));
            let (options, _) = read(&[(variable, value), ("TENURE_HEAP", "0")]);
            assert_eq!(options, Options::OFF, "{variable}");
        }
    }
}
