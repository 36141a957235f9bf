//! Ready-made things that stand on the verbs.

mod secret;

pub use secret::SecretBuffer;
