//! Runs the C programs of tests/preload, one for each hazard: each without the library,
//! then with it and each set of options, and with other allocators behind it.

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use common::*;
use libtest_mimic::{Completion, Trial};

/// The allocators that may be the real one, by their libraries' names.
const ALLOCATORS: [&str; 3] = [
    "libjemalloc.so.2",
    "libmimalloc.so.2",
    "libtcmalloc_minimal.so.4",
];

fn main() -> ExitCode {
    run(|| {
        let shop = Arc::new(Workshop::new());
        let mut trials = Vec::new();
        let mut trial = |name: String, run: fn(&Workshop, &Path) -> Verdict, source: &Path| {
            let (shop, source) = (shop.clone(), source.to_owned());
            let test = move || run(&shop, &source);
            let kind = match name.starts_with("hazard::") {
                true => "grouped",
                false => "grouped thorough",
            };
            trials.push(Trial::ignorable_test(name, test).with_kind(kind));
        };
        for source in files(&project("tests/preload"), "c") {
            let name = stem(&source);
            trial(format!("hazard::{name}"), with_each_set, &source);
            trial(format!("behind::{name}"), behind_a_library, &source);
            for (allocator, test) in ALLOCATORS.into_iter().zip(WITH_ALLOCATORS) {
                trial(format!("{allocator}::{name}"), test, &source);
            }
        }
        trials
    })
}

/// A function for each of [`ALLOCATORS`].
const WITH_ALLOCATORS: [fn(&Workshop, &Path) -> Verdict; 3] = [
    |shop, source| with_allocator(shop, source, ALLOCATORS[0]),
    |shop, source| with_allocator(shop, source, ALLOCATORS[1]),
    |shop, source| with_allocator(shop, source, ALLOCATORS[2]),
];

fn command(shop: &Workshop, source: &Path) -> Command {
    let mut command = Command::new(shop.compile(source, &[]));
    command.env("GUEST_LIBRARY", shop.compile_library("guest.c"));
    command
}

fn with_each_set(shop: &Workshop, source: &Path) -> Verdict {
    let mut answer = verdict(&mut command(shop, source))?;
    for (name, options) in SETS {
        let mut command = command(shop, source);
        let with = verdict(put_under(&mut command, options, &[]));
        answer = with.map_err(|error| format!("with {name}: {}", error.message().unwrap_or("")))?;
    }
    Ok(answer)
}

/// The guest library's constructors run before tenure's, because it is loaded behind
/// it.
fn behind_a_library(shop: &Workshop, source: &Path) -> Verdict {
    let guest = shop.compile_library("guest.c");
    let wrapper = shop.compile_library("wrapper.c");
    let (_, all) = SETS[SETS.len() - 1];
    let mut command = command(shop, source);
    verdict(put_under(&mut command, all, &[&guest, &wrapper]))
}

fn with_allocator(shop: &Workshop, source: &Path, allocator: &str) -> Verdict {
    let Some(path) = find_library(allocator) else {
        return Ok(Completion::ignored_with(format!(
            "there is no {allocator} here"
        )));
    };
    let mut alone = command(shop, source);
    if verdict(alone.env("LD_PRELOAD", &path)).is_err() {
        let reason = format!("{allocator} does not do this when it is alone");
        return Ok(Completion::ignored_with(reason));
    }
    let mut answer = Completion::Completed;
    for (name, options) in [SETS[2], SETS[SETS.len() - 1]] {
        let mut command = command(shop, source);
        let with = verdict(put_under(&mut command, options, &[&path]));
        answer = with.map_err(|error| format!("with {name}: {}", error.message().unwrap_or("")))?;
    }
    Ok(answer)
}
