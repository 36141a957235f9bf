//! Ground layer: the page range, the mapping that owns one, the error type, and
//! every call to the kernel.

pub(crate) mod bytes;
pub(crate) mod error;
pub(crate) mod headroom_limit;
pub(crate) mod mapping;
pub(crate) mod range;
pub(crate) mod sys;
