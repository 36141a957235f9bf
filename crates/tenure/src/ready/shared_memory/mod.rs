//! Volatile memory that processes share.

mod arena;
mod buffer;
mod cache;
mod copies;
mod core;
mod evict;
mod evictor;
mod file;
mod layout;
mod lease;
mod objects;
mod pin;
mod processes;
mod reader;
mod shared_file;
mod stats;
mod sync;
mod table;
mod turn;
mod word;

pub use arena::SharedArena;
pub use buffer::SharedBuffer;
pub use cache::{SharedCache, SharedValue};
pub use pin::SharedPin;
pub use reader::SharedReader;
pub use shared_file::SharedFile;
pub use stats::SharedStats;
