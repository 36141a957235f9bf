//! Ground layer: the range and the mapping that owns one, the error, and
//! everything that talks to the kernel.

pub(crate) mod bytes;
pub(crate) mod error;
pub(crate) mod mapping;
pub(crate) mod range;
pub(crate) mod room_bound;
pub(crate) mod sys;
