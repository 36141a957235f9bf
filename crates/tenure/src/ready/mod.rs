//! Ready-made things that stand on the verbs.

mod locked_file;

pub use locked_file::LockedFile;
