//! malloc's family in C, and operators new and delete in C++, answer with the heap as without.

mod common;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;

use common::*;
use libtest_mimic::{Completion, Trial};

type Test = (&'static str, fn(&Workshop) -> Verdict);

/// Freed pages stay dirty for as long as the programs run.
const UNDER_HEAP: Options = &[HEAP, ("TENURE_HEAP_DIRTY_DECAY", "1h")];

fn main() -> ExitCode {
    run(|| {
        let shop = Arc::new(Workshop::new());
        let tests: [Test; 7] = [
            ("every_function_of_the_family_answers", c_functions),
            ("operators_of_shared_library_use_heap", |shop| {
                operators(shop, "shared", &[])
            }),
            ("operators_of_static_library_use_heap", |shop| {
                operators(shop, "static", &["-static-libstdc++", "-static-libgcc"])
            }),
            ("replaced_operators_use_heap", |shop| {
                operators(shop, "replaced", &["-DREPLACED"])
            }),
            (
                "operators_of_allocator_behind_get_its_blocks",
                behind_operators,
            ),
            (
                "blocks_of_allocator_behind_with_few_functions_keep_contents",
                behind_few_functions,
            ),
            (
                "operators_of_jemalloc_behind_get_its_blocks",
                behind_jemalloc,
            ),
        ];
        let trial = |(name, test): Test| {
            let shop = shop.clone();
            Trial::ignorable_test(name, move || test(&shop)).with_kind("grouped")
        };
        tests.into_iter().map(trial).collect()
    })
}

/// Runs the program without the library, and then under the heap.
fn with_and_without(program: PathBuf) -> Output {
    let successful = |command: &mut Command| {
        let output = output_in_time(command);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {told}", output.status);
        output
    };
    successful(&mut Command::new(&program));
    let mut under = Command::new(&program);
    successful(put_under(under.arg("heap"), UNDER_HEAP, &[]))
}

fn c_functions(shop: &Workshop) -> Verdict {
    let program = shop.compile(&project("tests/preload/family/family.c"), &[]);
    let output = with_and_without(program);
    let told = String::from_utf8(output.stderr)?;
    // The heap's figures, and the C library's.
    assert!(told.starts_with("tenure: heap: "), "{told}");
    assert!(told.contains("system bytes"), "{told}");
    Ok(Completion::Completed)
}

fn operators(shop: &Workshop, name: &str, flags: &[&str]) -> Verdict {
    if find("c++").is_none() {
        return Ok(Completion::ignored_with("there is no c++ here"));
    }
    with_and_without(compile_operators(shop, name, flags));
    Ok(Completion::Completed)
}

fn compile_operators(shop: &Workshop, name: &str, flags: &[&str]) -> PathBuf {
    let program = shop.path(name);
    let mut compiler = Command::new("c++");
    compiler.arg("-std=c++17").args(STRICT).args(flags);
    compiler.arg(project("tests/preload/family/operators.cpp"));
    ok(compiler.arg("-o").arg(&program));
    program
}

fn behind_operators(shop: &Workshop) -> Verdict {
    let allocator = shop.compile_library("allocator.c");
    let flags = ["-Wl,--no-as-needed", allocator.to_str().unwrap()];
    let program = shop.compile(&project("tests/preload/family/operators_behind.c"), &flags);
    verdict(&mut Command::new(&program))?;
    // Between the heap and the allocator.
    let wrapper = shop.compile_library("wrapper.c");
    for options in [&[HEAP][..], &[LOW_THRESHOLD]] {
        for preloads in [&[][..], &[wrapper.as_path()]] {
            verdict(put_under(&mut Command::new(&program), options, preloads))?;
        }
    }
    Ok(Completion::Completed)
}

fn behind_few_functions(shop: &Workshop) -> Verdict {
    let allocator = shop.compile_library("few.c");
    let flags = ["-Wl,--no-as-needed", allocator.to_str().unwrap()];
    let program = shop.compile(&project("tests/preload/family/few_behind.c"), &flags);
    verdict(&mut Command::new(&program))?;
    for options in [&[HEAP][..], &[LOW_THRESHOLD]] {
        verdict(put_under(&mut Command::new(&program), options, &[]))?;
    }
    Ok(Completion::Completed)
}

fn behind_jemalloc(shop: &Workshop) -> Verdict {
    const JEMALLOC: &str = "libjemalloc.so.2";
    if find("c++").is_none() {
        return Ok(Completion::ignored_with("there is no c++ here"));
    }
    let Some(jemalloc) = find_library(JEMALLOC) else {
        return Ok(Completion::ignored_with(format!(
            "there is no {JEMALLOC} here"
        )));
    };
    for (name, flags) in [
        ("behind", &[][..]),
        ("replaced_behind", &["-DREPLACED"][..]),
    ] {
        let mut command = Command::new(compile_operators(shop, name, flags));
        verdict(put_under(command.arg("heap"), UNDER_HEAP, &[&jemalloc]))?;
    }
    Ok(Completion::Completed)
}
