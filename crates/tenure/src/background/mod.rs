//! Background layer: threads that free memory behind its caller.

pub(crate) mod freeing;
pub(crate) mod pace;
