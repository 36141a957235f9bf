//! The words `name=value` of the command line.

use std::path::PathBuf;

pub struct Arguments(Vec<String>);

impl Arguments {
    pub fn parse(words: impl Iterator<Item = String>) -> Self {
        // cargo adds `--bench`.
        Self(words.filter(|word| word.contains('=')).collect())
    }

    pub fn all(&self) -> &[String] {
        &self.0
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter_map(|word| word.split_once('='));
        values.find_map(|(found, value)| (found == name).then_some(value))
    }

    fn number(&self, name: &str) -> Option<usize> {
        let value = self.get(name)?;
        Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
    }

    pub fn bytes(&self) -> usize {
        self.number("bytes").unwrap_or(256 << 20)
    }

    pub fn rounds(&self) -> usize {
        self.number("rounds").unwrap_or(3)
    }

    /// How many operations are measured, after twice as many for a start.
    pub fn count(&self) -> usize {
        self.number("count").unwrap_or(200_000)
    }

    /// Returns the page caches that are measured, all of `count` unless some are named.
    pub fn settings(&self, count: usize) -> Vec<usize> {
        let named = |text: &str| text.split(',').map(|word| word.parse().unwrap()).collect();
        self.get("settings")
            .map_or_else(|| (0..count).collect(), named)
    }

    /// How many operations of a hundred change a row.
    pub fn updates(&self) -> usize {
        self.number("updates").unwrap_or(0)
    }

    /// How many operations make a transaction.
    pub fn operations(&self) -> usize {
        self.number("operations").unwrap_or(1)
    }

    pub fn group(&self) -> Option<usize> {
        self.number("group")
    }

    pub fn taken(&self) -> usize {
        self.number("taken").unwrap_or(0)
    }

    pub fn child(&self) -> Option<usize> {
        self.number("child")
    }

    pub fn folder(&self) -> PathBuf {
        self.get("folder")
            .map_or_else(std::env::temp_dir, PathBuf::from)
    }
}
