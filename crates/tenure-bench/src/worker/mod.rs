//! Worker processes: this program, started again. Another malloc can only be
//! preloaded, and a memory cgroup only entered with nothing charged elsewhere, when a
//! process starts.

mod inside;
pub mod job;
mod kill;
mod process;

pub use self::inside::work;
pub use self::kill::killed_way;
pub use self::process::{Environment, Worker, is_worker};

#[cfg(test)]
#[path = "../../tests/unit/worker/mod.rs"]
mod tests;
