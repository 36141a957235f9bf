//! The machine that is measured: memory, files, cgroups, and what the kernel says.

pub mod clock;
pub mod environment;
pub mod files;
pub mod group;
pub mod kernel;
pub mod memory;
pub mod probe;
pub mod restore;
pub mod threads;
pub mod touch;
pub mod trace;
pub mod zipf;

#[cfg(test)]
#[path = "../../tests/unit/machine/mod.rs"]
mod tests;
