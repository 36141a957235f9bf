//! How records are shown: tables, sentences, and both on a terminal.

pub mod figures;
pub mod finding;
pub mod headline;
pub mod table;
pub mod terminal;
