//! lazy_free, free by each policy, and reuse.

use tenure::{lazy_free::FreePolicy, page_size};

use super::super::case::{Case, again};
use super::super::common::{fill, is_filled};
use super::{Between, Group};

pub const ALL: Group = &[
    ("lazy_free", |case| free(case, None)),
    ("free_eagerly", |case| free(case, Some(FreePolicy::Eager))),
    ("free_lazily", |case| free(case, Some(FreePolicy::Lazy))),
    ("free_adaptively", |case| {
        free(case, Some(FreePolicy::Adaptive))
    }),
    ("reuse", reuse),
];

/// Checks that a failed call leaves every byte as it was.
fn free(case: &Case, policy: Option<FreePolicy>) {
    let memory = Between::new(64);
    let range = memory.range;
    let free = || unsafe {
        match policy {
            None => range.lazy_free(),
            Some(policy) => range.free(policy),
        }
    };
    if case.attempt(free).is_err() {
        assert!(memory.is_intact());
        again(free());
    }
    range.reuse();
    fill(range);
    assert!(memory.is_intact());
}

fn reuse(case: &Case) {
    let memory = super::super::common::anonymous(64);
    fill(memory.range());
    let idle = case.attempt(|| memory.lazy_free());
    let idle = idle.unwrap_or_else(|refused| {
        assert!(is_filled(refused.value.range()));
        again(refused.value.lazy_free())
    });
    let back = case.attempt(|| idle.reuse());
    let back = back.unwrap_or_else(|refused| again(refused.value.reuse()));
    assert_eq!(back.len(), 64 * page_size());
    fill(back.range());
    assert!(is_filled(back.range()));
}
