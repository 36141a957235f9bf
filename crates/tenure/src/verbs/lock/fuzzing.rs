//! Compares the registry of locks with a model that has one mode per page.

use super::LockMode;
use super::registry::Registry;
use crate::fuzzing::{PAGES, range, steps};

pub(crate) fn registry(data: &[u8]) {
    let mut registry = Registry::new();
    let mut model: [Option<LockMode>; PAGES] = [None; PAGES];
    for step in steps(data) {
        let named = range(step.from, step.to);
        let pages = &mut model[step.from..step.to];
        match step.what % 4 {
            0 => {
                registry.insert(named, LockMode::Now);
                pages.fill(Some(LockMode::Now));
            }
            1 => {
                registry.insert(named, LockMode::OnFault);
                pages.fill(Some(LockMode::OnFault));
            }
            2 => {
                registry.remove(named);
                pages.fill(None);
            }
            _ if step.more == 0 => {
                registry.clear();
                model.fill(None);
            }
            _ => {}
        }
        compare(&registry, &model, step.from, step.to);
        compare(&registry, &model, 0, PAGES);
        for page in 0..PAGES {
            compare(&registry, &model, page, page + 1);
        }
    }
}

fn compare(registry: &Registry, model: &[Option<LockMode>], from: usize, to: usize) {
    let mut next = range(from, to).start();
    let mut recorded = vec![None; to - from];
    for (part, mode) in registry.recorded_parts(range(from, to)) {
        assert!(part.start() >= next, "parts are not in order of address");
        next = part.end();
        let first = (part.start() - range(from, to).start()) / crate::page_size();
        recorded[first..first + part.pages()].fill(Some(mode));
    }
    assert_eq!(recorded, model[from..to], "{from}..{to}");
}
