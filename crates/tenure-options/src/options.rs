//! What the options are set to.

use core::str;

use crate::parse_size;
use crate::table::{Kind, OptionName, OptionRow, TABLE};

/// From this size on, requests go to the heap.
pub const HEAP_THRESHOLD_BYTES: usize = 256 << 10;
/// The threshold may be set as low as this.
pub const LEAST_HEAP_THRESHOLD_BYTES: usize = 64 << 10;

/// What is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From which size on requests go to tenure's heap, in bytes.
    pub heap_threshold_bytes: Option<usize>,
    /// `munmap` in the background.
    pub munmap: bool,
    /// `madvise(MADV_DONTNEED)` in the background.
    pub discard: bool,
    /// All memory locked on fault.
    pub lock: bool,
    /// From which size on new mappings are populated, in bytes.
    pub populate_bytes: Option<usize>,
    /// The end of the process in the background.
    pub exit: bool,
    /// A summary at the end.
    pub stats: bool,
    /// A line at the start.
    pub verbose: bool,
}

impl Options {
    /// Nothing is on.
    pub const OFF: Self = Self {
        heap_threshold_bytes: None,
        munmap: false,
        discard: false,
        lock: false,
        populate_bytes: None,
        exit: false,
        stats: false,
        verbose: false,
    };

    /// Whether anything is to be done at `mmap` and its kin.
    pub fn wants_mappings(&self) -> bool {
        self.munmap || self.discard || self.populate_bytes.is_some()
    }

    /// The same without what is done at `mmap` and its kin.
    pub fn without_mappings(self) -> Self {
        Self {
            munmap: false,
            discard: false,
            populate_bytes: None,
            ..self
        }
    }

    /// Reads what `value_of` answers for each variable. An empty value is as
    /// none. A value that the option cannot have is told to `wrong`, and the
    /// option is as if it were not set.
    ///
    /// ```
    /// use tenure_options::Options;
    ///
    /// let value_of = |name: &str| (name == "TENURE_HEAP").then_some(&b"1"[..]);
    /// let options = Options::read(value_of, |row, _| panic!("{}", row.variable));
    /// assert_eq!(options.heap_threshold_bytes, Some(256 << 10));
    /// ```
    pub fn read<'a>(
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
        mut wrong: impl FnMut(&'static OptionRow, &'a [u8]),
    ) -> Self {
        let mut options = Self::OFF;
        // Off is off, whatever its threshold.
        let mut heap = None;
        for row in &TABLE {
            let Some(text) = value_of(row.variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            let Some(value) = row.value(text) else {
                wrong(row, text);
                continue;
            };
            match (row.name, value) {
                (OptionName::Heap, Value::On(is_on)) => heap = Some(is_on),
                (OptionName::HeapThreshold, Value::Bytes(bytes)) => {
                    options.heap_threshold_bytes = Some(bytes);
                }
                (OptionName::Munmap, Value::On(is_on)) => options.munmap = is_on,
                (OptionName::Discard, Value::On(is_on)) => options.discard = is_on,
                (OptionName::Lock, Value::On(is_on)) => options.lock = is_on,
                (OptionName::Populate, Value::Bytes(bytes)) => {
                    options.populate_bytes = Some(bytes);
                }
                (OptionName::Exit, Value::On(is_on)) => options.exit = is_on,
                (OptionName::Stats, Value::On(is_on)) => options.stats = is_on,
                (OptionName::Verbose, Value::On(is_on)) => options.verbose = is_on,
                // The table says of which kind each is.
                (_, Value::On(_) | Value::Bytes(_)) => wrong(row, text),
            }
        }
        match heap {
            Some(false) => options.heap_threshold_bytes = None,
            Some(true) => {
                let threshold = options.heap_threshold_bytes;
                options.heap_threshold_bytes = Some(threshold.unwrap_or(HEAP_THRESHOLD_BYTES));
            }
            None => {}
        }
        options
    }
}

enum Value {
    On(bool),
    Bytes(usize),
}

impl OptionRow {
    /// Whether the option can be set to this.
    pub fn accepts(&self, text: &str) -> bool {
        self.value(text.as_bytes()).is_some()
    }

    fn value(&self, text: &[u8]) -> Option<Value> {
        let text = str::from_utf8(text).ok()?;
        match self.kind {
            Kind::Switch if text == "1" => Some(Value::On(true)),
            Kind::Switch if text == "0" => Some(Value::On(false)),
            Kind::Switch => None,
            Kind::Word(word) => (text == word).then_some(Value::On(true)),
            Kind::Size { least_bytes } => parse_size(text)
                .filter(|bytes| *bytes >= least_bytes)
                .map(Value::Bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn read(environment: &[(&str, &'static str)]) -> (Options, Vec<&'static str>) {
        let mut wrong = Vec::new();
        let value_of = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_bytes())
        };
        let options = Options::read(value_of, |row, _| wrong.push(row.variable));
        (options, wrong)
    }

    #[test]
    fn each_option_is_read() {
        let everything = [
            ("TENURE_HEAP", "1"),
            ("TENURE_HEAP_THRESHOLD", "64K"),
            ("TENURE_MUNMAP", "background"),
            ("TENURE_DISCARD", "background"),
            ("TENURE_LOCK", "onfault"),
            ("TENURE_POPULATE", "1M"),
            ("TENURE_EXIT", "background"),
            ("TENURE_STATS", "1"),
            ("TENURE_VERBOSE", "1"),
        ];
        assert_eq!(everything.len(), TABLE.len());
        let all_on = Options {
            heap_threshold_bytes: Some(64 << 10),
            munmap: true,
            discard: true,
            lock: true,
            populate_bytes: Some(1 << 20),
            exit: true,
            stats: true,
            verbose: true,
        };
        assert_eq!(read(&everything), (all_on, Vec::new()));
        assert_eq!(read(&[]), (Options::OFF, Vec::new()));
    }

    #[test]
    fn mappings_are_a_part_of_it() {
        for (variable, value, wanted) in [
            ("TENURE_MUNMAP", "background", true),
            ("TENURE_DISCARD", "background", true),
            ("TENURE_POPULATE", "1M", true),
            ("TENURE_HEAP", "1", false),
        ] {
            let (options, _) = read(&[(variable, value)]);
            assert_eq!(options.wants_mappings(), wanted, "{variable}");
            assert_eq!(options.without_mappings() == Options::OFF, wanted);
        }
    }

    #[test]
    fn empty_is_as_not_set() {
        let empty: Vec<_> = TABLE.iter().map(|row| (row.variable, "")).collect();
        assert_eq!(read(&empty), (Options::OFF, Vec::new()));
    }

    #[test]
    fn a_wrong_value_is_told_and_changes_nothing() {
        for (variable, value) in [
            ("TENURE_HEAP", "yes"),
            ("TENURE_HEAP_THRESHOLD", "63K"),
            ("TENURE_HEAP_THRESHOLD", "many"),
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
    fn a_threshold_turns_the_heap_on_unless_it_is_off() {
        let threshold = |environment: &[_]| read(environment).0.heap_threshold_bytes;
        let row = ("TENURE_HEAP_THRESHOLD", "1M");
        assert_eq!(threshold(&[row]), Some(1 << 20));
        assert_eq!(threshold(&[row, ("TENURE_HEAP", "0")]), None);
        assert_eq!(
            threshold(&[("TENURE_HEAP", "1")]),
            Some(HEAP_THRESHOLD_BYTES)
        );
    }
}
