//! Background layer: threads that free memory for callers that do not wait, and the page
//! pool.

pub(crate) mod chunk_sizer;
pub(crate) mod freeing;
pub mod pool;
