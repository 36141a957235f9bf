//! Ready-made containers, built from the verbs.

mod locked_file;
pub(crate) mod secret;
mod shared_memory;
mod volatile_cache;

pub use locked_file::LockedFile;
pub use secret::SecretBuffer;
pub use shared_memory::{
    SharedArena, SharedBuffer, SharedCache, SharedFile, SharedPin, SharedReader, SharedStats,
    SharedValue,
};
pub use volatile_cache::{CacheOptions, CacheStats, Pinned, VolatileCache};
