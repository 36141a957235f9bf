//! The frozen interface: names, values and layouts are the same for Rust and for C; and the
//! header, the symbols, the version script and the man pages name the same functions.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::mem::offset_of;
use std::process::{Command, ExitCode};

use common::*;
use libtest_mimic::Completion;
use tenure_c::{
    tenure_cache_options, tenure_cache_stats, tenure_cache_value, tenure_count, tenure_heap_group,
    tenure_pool_options, tenure_populate_options, tenure_range, tenure_stats,
};

fn main() -> ExitCode {
    run(|installed| {
        let tests: &[Test] = &[
            ("layouts_of_c_and_rust_are_equal", layouts),
            ("constants_of_c_and_rust_are_equal", constants),
            (
                "functions_of_header_map_symbols_and_pages_are_equal",
                functions,
            ),
            ("symbols_of_shared_library_have_versions", versions),
            ("header_included_twice_compiles_as_c11_and_cpp", header),
            ("pages_checked_by_groff_have_no_warnings", pages),
        ];
        trials(installed, tests)
    })
}

/// A C program that asserts the facts that hold in Rust.
struct Assertions(String);

impl Assertions {
    fn new() -> Self {
        Self("#include <tenure.h>\n".to_owned())
    }

    fn equal(&mut self, expression: &str, value: usize) {
        let Self(text) = self;
        text.push_str(&format!(
            "_Static_assert({expression} == {value}, \"{expression}\");\n"
        ));
    }

    fn check(self, installed: &Installed, name: &str) -> Verdict {
        let source = installed.program(&format!("{name}.c"));
        fs::write(&source, self.0 + "int main(void) { return 0; }\n")?;
        installed.compile(&source, name, &[]);
        Ok(Completion::Completed)
    }
}

/// Returns the size of a field.
fn size_of_field<T, F>(_: fn(&T) -> *const F) -> usize {
    size_of::<F>()
}

/// Checks each field's frozen offset, and the frozen size of the structure.
macro_rules! layout {
    ($assertions:ident, $name:ident, $($field:ident: $offset:literal),*; $size:literal) => {
        $(
            assert_eq!(offset_of!($name, $field), $offset);
            $assertions.equal(
                concat!("offsetof(struct ", stringify!($name), ", ", stringify!($field), ")"),
                $offset,
            );
            $assertions.equal(
                concat!("sizeof(((struct ", stringify!($name), " *)0)->", stringify!($field), ")"),
                size_of_field(|it: &$name| &raw const it.$field),
            );
        )*
        assert_eq!(size_of::<$name>(), $size);
        $assertions.equal(concat!("sizeof(struct ", stringify!($name), ")"), $size);
    };
}

fn layouts(installed: &Installed) -> Verdict {
    let mut c = Assertions::new();
    #[cfg(target_pointer_width = "64")]
    {
        layout!(c, tenure_range, addr: 0, len: 8; 16);
        layout!(c, tenure_populate_options,
            size: 0, threads: 8, chunk_bytes: 16, progress: 24, data: 32; 40);
        layout!(c, tenure_cache_options, size: 0, max_bytes: 8; 16);
        layout!(c, tenure_cache_value, data: 0, len: 8, pin: 16; 24);
        // New fields come last, and the size grows.
        layout!(c, tenure_pool_options,
            size: 0, max_bytes: 8, prefill_bytes: 16, prefill_on_use: 24,
            recycle_released: 32; 40);
    }
    layout!(c, tenure_count, calls: 0, bytes: 8; 16);
    layout!(c, tenure_heap_group,
        in_use_bytes: 0, dirty_bytes: 8, muzzy_bytes: 16, retained_bytes: 24; 32);
    // New fields come last, and the size grows.
    layout!(c, tenure_stats,
        populate: 0, lock: 16, unlock: 32, lock_all_calls: 48, unlock_all_calls: 56,
        lazy_free: 64, mark_volatile: 80, mark_nonvolatile: 96, purged_by_kernel_bytes: 112,
        purged_on_request_bytes: 120, unprotected_bytes: 128, volatile_bytes: 136,
        munmap: 144, discard: 160, punch: 176, deferred_free: 192,
        freed_by_caller_bytes: 208, workers_started: 216, pending_release_bytes: 224,
        eager_free: 232, freed_under_pressure: 248, purged_under_pressure_bytes: 264,
        offered_bytes: 272, offer_failed_bytes: 280, unofferable_bytes: 288, cache_hits: 296,
        cache_misses: 304, cache_evicted: 312, cache_purged: 328, cache_bytes: 344,
        pool_bytes: 352, pool_lazily_free_bytes: 360, pool_recycled_bytes: 368,
        pool_prefilled_bytes: 376, pool_given: 384, pool_returned_bytes: 400,
        sqlite_pages: 408, sqlite_purged: 416, sqlite_offered_hits: 432,
        shared_allocated: 440, shared_purged: 456,
        heap_small: 472, heap_medium: 504, heap_large: 536, heap_active_bytes: 568,
        heap_cached_bytes: 576, heap_max_dirty_bytes: 584, heap_pending_bytes: 592,
        heap_returned_bytes: 600, heap_returned_under_pressure: 608; 624);
    layout!(c, tenure_cache_stats,
        hits: 0, misses: 8, insertions: 16, evictions: 24, purged: 32, values: 40, bytes: 48,
        refused: 56; 64);
    c.check(installed, "layouts")
}

fn constants(installed: &Installed) -> Verdict {
    let mut c = Assertions::new();
    macro_rules! constants {
        ($($name:ident = $value:literal),* $(,)?) => {{
            $(
                assert_eq!(tenure_c::$name, $value);
                c.equal(stringify!($name), $value);
            )*
            [$(stringify!($name)),*]
        }};
    }
    let known = constants![
        TENURE_POPULATE_READ = 1,
        TENURE_POPULATE_WRITE = 2,
        TENURE_POPULATE_FORCE = 4,
        TENURE_LOCK_NOW = 1,
        TENURE_LOCK_ONFAULT = 2,
        TENURE_LOCK_CURRENT = 4,
        TENURE_LOCK_FUTURE = 8,
        TENURE_MAP_LOCKONFAULT = 1,
        TENURE_MAP_POPULATE_READ = 2,
        TENURE_MAP_POPULATE_WRITE = 4,
        TENURE_MAP_NODUMP = 8,
        TENURE_MAP_WIPEONFORK = 16,
        TENURE_VOLATILE_OFFER_NOW = 1,
        TENURE_CACHE_MAX_KEY = 65536,
    ];
    let header = fs::read_to_string(crate_folder().join("include/tenure.h"))?;
    let defined = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define TENURE_"));
    let guards = 1;
    assert_eq!(defined.count(), known.len() + guards);
    c.check(installed, "constants")
}

fn functions(installed: &Installed) -> Verdict {
    let header = fs::read_to_string(crate_folder().join("include/tenure.h"))?;
    let declarations = header
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let declared: BTreeSet<String> = declarations
        .filter_map(|line| {
            Some(
                line.split_once('(')?
                    .0
                    .rsplit([' ', '*'])
                    .next()?
                    .to_owned(),
            )
        })
        .collect();
    assert_eq!(declared.len(), 28, "{declared:?}");

    let map = fs::read_to_string(crate_folder().join("tenure.map"))?;
    let mapped = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let mapped = mapped.filter(|name| name.starts_with("tenure_"));
    assert_eq!(mapped.map(str::to_owned).collect::<BTreeSet<_>>(), declared);

    let exported: BTreeSet<String> = symbols(installed).into_iter().map(|it| it.0).collect();
    assert_eq!(exported, declared);

    let pages = files(&project("man"), "3")
        .iter()
        .map(|page| stem(page))
        .collect();
    assert_eq!(declared, pages);
    let overview = fs::read_to_string(project("man/tenure.7"))?;
    let missing: Vec<_> = declared
        .iter()
        .filter(|name| !overview.contains(*name))
        .collect();
    assert!(missing.is_empty(), "tenure(7) does not name {missing:?}");
    Ok(Completion::Completed)
}

/// Returns the symbols that the shared library exports, with their versions.
fn symbols(installed: &Installed) -> Vec<(String, String)> {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--with-symbol-versions"]);
    let output = ok(nm.arg(installed.shared_library()));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    let versioned = names.filter_map(|name| name.split_once("@@"));
    versioned
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect()
}

fn versions(installed: &Installed) -> Verdict {
    let symbols = symbols(installed);
    assert_eq!(symbols.len(), 28);
    assert!(
        symbols.iter().all(|(_, version)| version == "TENURE_0.1"),
        "{symbols:?}"
    );
    let mut readelf = Command::new("readelf");
    let output = ok(readelf
        .arg("--dynamic")
        .arg("--wide")
        .arg(installed.shared_library()));
    let text = String::from_utf8(output.stdout)?;
    for wanted in ["[libtenure.so.0]", "NODELETE"] {
        assert!(text.contains(wanted), "no {wanted} in {text}");
    }
    Ok(Completion::Completed)
}

fn header(installed: &Installed) -> Verdict {
    for (ending, standard, includes) in [
        ("c", "-std=c11", &["tenure.h"][..]),
        ("cpp", "-std=c++17", &["tenure.h", "tenure.hpp"]),
    ] {
        let source = installed.program(&format!("header.{ending}"));
        let lines = includes
            .iter()
            .map(|include| format!("#include <{include}>\n"));
        // Twice, to test the include guards.
        let text = lines.collect::<String>().repeat(2) + "int main(void) { return 0; }\n";
        fs::write(&source, text)?;
        installed.compile(&source, &format!("header-{ending}"), &[standard]);
    }
    Ok(Completion::Completed)
}

fn pages(_: &Installed) -> Verdict {
    if find("groff").is_none() {
        return Ok(Completion::ignored_with("groff is unavailable"));
    }
    for ending in ["1", "3", "7"] {
        for page in files(&project("man"), ending) {
            let mut groff = Command::new("groff");
            groff.args(["-man", "-ww", "-Tutf8", "-z"]);
            let output = ok(groff.arg(&page));
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert!(warnings.is_empty(), "{}: {warnings}", page.display());
        }
    }
    Ok(Completion::Completed)
}
