//! lazy_free, free by each policy, and taking back.

use tenure::{FreePolicy, page_size};

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
    ("take_back", take_back),
];

/// A refusal leaves every byte as it was.
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
        assert!(memory.is_whole());
        again(free());
    }
    range.reuse();
    fill(range);
    assert!(memory.is_whole());
}

fn take_back(case: &Case) {
    let memory = super::super::common::anonymous(64);
    fill(memory.range());
    let idle = case.attempt(|| memory.lazy_free());
    let idle = idle.unwrap_or_else(|refused| {
        assert!(is_filled(refused.value.range()));
        again(refused.value.lazy_free())
    });
    let back = case.attempt(|| idle.take_back());
    let back = back.unwrap_or_else(|refused| again(refused.value.take_back()));
    assert_eq!(back.len(), 64 * page_size());
    fill(back.range());
    assert!(is_filled(back.range()));
}
