//! Background layer: the thread that frees memory behind its caller.

pub(crate) mod freeing;
