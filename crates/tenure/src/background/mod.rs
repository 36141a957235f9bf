//! Background layer: threads that free memory for callers that do not wait.

pub(crate) mod chunk_sizer;
pub(crate) mod freeing;
