//! Ready-made things that stand on the verbs.

mod locked_file;
mod secret;

pub use locked_file::LockedFile;
pub use secret::SecretBuffer;
