//! Each option does what the table says, and nothing is done without one; the exported
//! symbols, and how the library is loaded.

mod common;
#[path = "../../tenure/tests/common/undo.rs"]
mod undo;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use libtest_mimic::{Completion, Failed, Trial};
use tenure::pressure::{self, Level};
use undo::{change_setting, lock_setting};

type Test = (&'static str, fn(&Workshop) -> Verdict);

fn main() -> ExitCode {
    run(|| {
        let shop = Arc::new(Workshop::new());
        let tests: [Test; 30] = [
            ("exported_symbols_are_exactly_the_hooks", symbols),
            ("library_is_linked_nodelete_and_now", stays),
            ("no_option_set_changes_nothing", nothing),
            ("heap_option_serves_blocks", heap),
            (
                "heap_beside_own_function_of_program_is_left_out",
                own_function,
            ),
            (
                "heap_in_front_of_allocator_whose_own_functions_are_called_is_left_out",
                specific_function,
            ),
            (
                "reallocarray_of_program_with_own_realloc_calls_that",
                reallocarray_of_own_family,
            ),
            (
                "heap_behind_own_malloc_of_library_is_left_out",
                own_malloc_of_library,
            ),
            ("heap_in_program_at_fixed_address_is_on", fixed_address),
            ("heap_ignores_options_of_jemalloc_of_program", jemalloc),
            ("heap_ignores_options_of_jemalloc_in_etc", jemalloc_link),
            ("options_without_limits_to_read_are_on", no_limits),
            ("munmap_and_discard_options_defer_the_free", release),
            ("populate_option_faults_new_mappings_in", populate),
            ("pool_option_feeds_populate_and_is_off_beside_lock", pool),
            (
                "pool_released_option_keeps_what_munmap_frees",
                pool_released,
            ),
            (
                "pool_released_option_alone_is_left_out",
                pool_released_alone,
            ),
            ("lock_option_locks_on_fault", lock),
            ("lock_option_with_node_runs", lock_with_node),
            (
                "lock_option_on_old_kernel_prints_one_line",
                lock_on_old_kernel,
            ),
            ("refused_lock_prints_one_line", refused_lock),
            ("heap_with_lock_serves_blocks", heap_and_lock),
            ("rlimit_as_turns_options_off", few_addresses),
            ("exit_option_starts_teardown_helper", exit),
            ("stats_option_prints_summary_however_program_ends", summary),
            (
                "stats_option_with_exit_in_signal_handler_ends",
                exit_in_handler,
            ),
            ("verbose_option_prints_one_line", verbose),
            ("invalid_value_is_reported_and_ignored", wrong),
            ("libraries_behind_see_calls_that_tenure_passes_on", behind),
            (
                "threads_that_discard_60000_mappings_have_memory",
                many_by_threads,
            ),
        ];
        let trial = |kind: &'static str| {
            let shop = shop.clone();
            move |(name, test): Test| {
                let shop = shop.clone();
                Trial::ignorable_test(name, move || test(&shop)).with_kind(kind)
            }
        };
        let million: Test = ("million_mappings_are_left_to_the_kernel", million);
        let tests = tests.into_iter().map(trial("grouped"));
        tests
            .chain([million].into_iter().map(trial("exclusive thorough")))
            .collect()
    })
}

const HOOKS: [&str; 30] = [
    "_Exit",
    "__register_atfork",
    "_exit",
    "aligned_alloc",
    "calloc",
    "cfree",
    "dlclose",
    "free",
    "free_aligned_sized",
    "free_sized",
    "madvise",
    "mallinfo",
    "mallinfo2",
    "malloc",
    "malloc_info",
    "malloc_stats",
    "malloc_trim",
    "malloc_usable_size",
    "mallopt",
    "memalign",
    "mmap",
    "mmap64",
    "mremap",
    "munmap",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "sqlite3_initialize",
    "reallocarray",
    "valloc",
];

/// The symbols have no versions, so that they satisfy programs that ask for a version
/// of the C library's.
fn symbols(_: &Workshop) -> Verdict {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--with-symbol-versions"]);
    let output = ok(nm.arg(library()));
    let text = String::from_utf8(output.stdout)?;
    let names: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    assert_eq!(names, BTreeSet::from(HOOKS));
    Ok(Completion::Completed)
}

fn stays(_: &Workshop) -> Verdict {
    if find("readelf").is_none() {
        return Ok(Completion::ignored_with("there is no readelf here"));
    }
    let mut readelf = Command::new("readelf");
    let output = ok(readelf.arg("--dynamic").arg("--wide").arg(library()));
    let text = String::from_utf8(output.stdout)?;
    for wanted in ["NODELETE", "NOW"] {
        assert!(text.contains(wanted), "no {wanted} in {text}");
    }
    Ok(Completion::Completed)
}

/// The program's lines, and the library's.
struct Facts {
    lines: Vec<String>,
    ours: Vec<String>,
}

impl Facts {
    fn of(shop: &Workshop, options: Options, argument: &str) -> Self {
        let program = shop.compile(&project("tests/preload/facts/facts.c"), &[]);
        let mut command = Command::new(program);
        command.arg(argument);
        Self::from(&output_in_time(put_under(&mut command, options, &[])))
    }

    fn from(output: &Output) -> Self {
        let lines = |text: &[u8]| -> Vec<String> {
            let text = String::from_utf8_lossy(text);
            text.lines().map(str::to_owned).collect()
        };
        let ours = lines(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{ours:?}");
        Self {
            lines: lines(&output.stdout),
            ours,
        }
    }

    #[track_caller]
    fn tell(&self, wanted: &str) {
        assert!(
            self.lines.iter().any(|line| line == wanted),
            "no {wanted}: {:?}",
            self.lines
        );
    }

    /// Returns the only line of the library's.
    #[track_caller]
    fn line(&self) -> &str {
        assert_eq!(self.ours.len(), 1, "{:?}", self.ours);
        &self.ours[0]
    }
}

fn nothing(shop: &Workshop) -> Verdict {
    for options in [&[][..], &[STATS]] {
        let facts = Facts::of(shop, options, "");
        facts.tell(&format!("mapped 0 of {}", (8 << 20) / tenure::page_size()));
        facts.tell("reserved 0");
        facts.tell("locked no");
        facts.tell("helper none");
        assert!(facts.ours.is_empty(), "{:?}", facts.ours);
    }
    Ok(Completion::Completed)
}

fn heap(shop: &Workshop) -> Verdict {
    let facts = Facts::of(shop, &[HEAP, STATS], "");
    assert!(facts.line().contains("heap: "), "{}", facts.line());
    const OFF: (&str, &str) = ("TENURE_HEAP", "0");
    let facts = Facts::of(shop, &[LOW_THRESHOLD, OFF, STATS], "");
    assert!(facts.ours.is_empty(), "{:?}", facts.ours);
    Ok(Completion::Completed)
}

/// Programs at any address, and at a fixed one: how they are linked, and compiled.
const KINDS: [(&str, &str); 2] = [("-pie", "-fPIE"), ("-no-pie", "-fno-pie")];

/// Runs the program with the heap and munmap=background on, and returns the library's lines.
fn own_malloc(shop: &Workshop, name: &str, flags: &[&str]) -> Result<String, Failed> {
    let source = project("tests/preload/facts/own_malloc.c");
    lines_of(shop.compile_as(name, &source, flags), name)
}

fn lines_of(program: PathBuf, name: &str) -> Result<String, Failed> {
    verdict(&mut Command::new(&program))?;
    let mut command = Command::new(program);
    const OPTIONS: [(&str, &str); 4] = [HEAP, VERBOSE, MUNMAP, STATS];
    let output = output_in_time(put_under(&mut command, &OPTIONS, &[]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Ok(told),
        false => Err(format!("{name}: {}: {told}", output.status).into()),
    }
}

fn own_function(shop: &Workshop) -> Verdict {
    for (function, flag) in [
        ("malloc", "-DOWN_MALLOC"),
        ("calloc", "-DOWN_CALLOC"),
        ("realloc", "-DOWN_REALLOC"),
        ("free", "-DOWN_FREE"),
    ] {
        for (kind, code) in KINDS {
            let name = format!("own_{function}{kind}");
            let told = own_malloc(shop, &name, &[flag, kind, code])?;
            let wanted = format!("heap is left out: the program has a {function} of its own\n");
            assert!(told.contains(&wanted), "{name}: {told}");
            assert!(!told.contains("heap from"), "{name}: {told}");
        }
    }
    const ALL: [&str; 4] = [
        "-DOWN_MALLOC",
        "-DOWN_CALLOC",
        "-DOWN_REALLOC",
        "-DOWN_FREE",
    ];
    let told = own_malloc(shop, "own_family", &ALL)?;
    assert!(told.contains("has a malloc of its own\n"), "{told}");
    Ok(Completion::Completed)
}

fn specific_function(shop: &Workshop) -> Verdict {
    let [allocator, weak] = ["allocator.c", "weak.c"].map(|it| shop.compile_library(it));
    let [allocator, weak] = [&allocator, &weak].map(|it| it.to_str().unwrap());
    for (kind, code) in KINDS {
        for (user, function, flag) in [
            ("the program", "mi_free_aligned", "-UBY_ADDRESS"),
            ("the program", "dallocx", "-DBY_ADDRESS"),
            (weak, "dallocx", "-DBY_LIBRARY"),
        ] {
            let name = format!("specific{flag}{kind}");
            let source = project("tests/preload/family/specific.c");
            let libraries = match user == weak {
                true => &["-Wl,--no-as-needed", allocator, weak][..],
                false => &["-Wl,--no-as-needed", allocator],
            };
            let flags = [&[kind, code, flag][..], libraries].concat();
            let told = lines_of(shop.compile_as(&name, &source, &flags), &name)?;
            let wanted = format!(
                "heap is left out: {user} uses {function}, which knows only its allocator's blocks\n"
            );
            assert!(told.contains(&wanted), "{name}: {told}");
            assert!(!told.contains("heap from"), "{name}: {told}");
        }
    }
    Ok(Completion::Completed)
}

fn reallocarray_of_own_family(shop: &Workshop) -> Verdict {
    let source = project("tests/preload/facts/own_family.c");
    for (kind, code) in KINDS {
        let name = format!("own_family{kind}");
        let told = lines_of(shop.compile_as(&name, &source, &[kind, code]), &name)?;
        assert!(told.contains("has a malloc of its own\n"), "{told}");
    }
    Ok(Completion::Completed)
}

fn own_malloc_of_library(shop: &Workshop) -> Verdict {
    let wrapper = shop.compile_library("wrapper.c");
    let program = shop.compile(&project("tests/preload/facts/facts.c"), &[]);
    let mut command = Command::new(program);
    put_under(&mut command, &[HEAP, VERBOSE], &[]);
    let preloads = format!("{}:{}", wrapper.display(), library().display());
    let facts = Facts::from(&output_in_time(command.env("LD_PRELOAD", preloads)));
    let wanted = format!(
        "tenure: heap is left out: {} has a malloc of its own",
        wrapper.display()
    );
    assert!(facts.ours.contains(&wanted), "{:?}", facts.ours);
    Ok(Completion::Completed)
}

fn fixed_address(shop: &Workshop) -> Verdict {
    for (kind, code) in KINDS {
        let name = format!("own_none{kind}");
        let told = own_malloc(shop, &name, &[kind, code])?;
        assert!(told.contains("heap from 0 bytes on"), "{name}: {told}");
        // An allocator would have this done by the kernel.
        assert!(
            told.contains("unmapped 40 MiB in 5 calls"),
            "{name}: {told}"
        );
    }
    Ok(Completion::Completed)
}

/// tikv-jemallocator, in a Rust program, has the same names as the heap's jemalloc.
fn jemalloc(shop: &Workshop) -> Verdict {
    const VARIABLE: (&str, &str) = ("_RJEM_MALLOC_CONF", "prof:true,abort_conf:true");
    for options in [&[VARIABLE][..], &[VARIABLE, HEAP]] {
        let facts = Facts::of(shop, options, "");
        assert!(facts.ours.is_empty(), "{:?}", facts.ours);
    }
    let source = project("tests/preload/facts/jemalloc.c");
    let program = shop.compile(&source, &["-rdynamic"]);
    let mut command = Command::new(program);
    let output = output_in_time(put_under(&mut command, &[VARIABLE, HEAP, VERBOSE], &[]));
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, VARIABLE.1.as_bytes(), "{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("heap from 0 bytes on"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    Ok(Completion::Completed)
}

fn jemalloc_link(shop: &Workshop) -> Verdict {
    const SET: &str = "mount -t tmpfs none /etc && \
        ln -s abort_conf:true,prof:true /etc/_rjem_malloc.conf && exec env \"$@\"";
    let in_namespace = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", SET, "sh"]).args(arguments);
        command.output()
    };
    if !in_namespace(&["true"]).is_ok_and(|output| output.status.success()) {
        return Ok(Completion::ignored_with("no namespace of mounts to be had"));
    }
    let source = project("tests/preload/facts/jemalloc.c");
    let program = shop.compile_as("jemalloc_link", &source, &[]);
    let preload = format!("LD_PRELOAD={}", library().display());
    let (variable, value) = HEAP;
    let heap = format!("{variable}={value}");
    let program = program.to_str().unwrap();
    let output = in_namespace(&["_RJEM_MALLOC_CONF=", &preload, &heap, program])?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
    Ok(Completion::Completed)
}

fn no_limits(shop: &Workshop) -> Verdict {
    let program = shop.compile(&project("tests/preload/facts/no_limits.c"), &[]);
    let mut command = Command::new(program);
    for (variable, value) in [HEAP, MUNMAP, DISCARD, STATS, POPULATE, VERBOSE] {
        command.env(variable, value);
    }
    let output = output_in_time(command.arg(library()));
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        return Ok(Completion::ignored_with(told));
    }
    assert!(output.status.success(), "{told}");
    assert!(told.contains("heap from 0 bytes on"), "{told}");
    Ok(Completion::Completed)
}

fn release(shop: &Workshop) -> Verdict {
    let facts = Facts::of(shop, &[MUNMAP, STATS], "");
    let told = facts.line();
    assert!(told.contains("unmapped 8 MiB in 1 calls"), "{told}");
    assert!(
        told.contains("freed in the background 8 MiB in 1 calls"),
        "{told}"
    );
    let facts = Facts::of(shop, &[DISCARD, STATS], "");
    let told = facts.line();
    assert!(told.contains("discarded 8 MiB in 1 calls"), "{told}");
    assert!(!told.contains("unmapped"), "{told}");
    Ok(Completion::Completed)
}

fn populate(shop: &Workshop) -> Verdict {
    let pages = (8 << 20) / tenure::page_size();
    let all = format!("mapped {pages} of {pages}");
    let none = format!("mapped 0 of {pages}");
    let facts = Facts::of(shop, &[POPULATE], "");
    facts.tell(&all);
    facts.tell("reserved 0");
    Facts::of(shop, &[("TENURE_POPULATE", "8M")], "").tell(&all);
    Facts::of(shop, &[("TENURE_POPULATE", "8388609")], "").tell(&none);
    Ok(Completion::Completed)
}

fn pool(shop: &Workshop) -> Verdict {
    const POOL: (&str, &str) = ("TENURE_POOL", "32M");
    let features = tenure::Features::get();
    if features.madv_populate.is_err() || features.mremap_dontunmap.is_err() {
        return Ok(Completion::ignored_with("needs Linux 5.14"));
    }
    // The kernel populates what the pool does not have yet.
    let pages = (8 << 20) / tenure::page_size();
    let facts = Facts::of(shop, &[POPULATE, POOL, VERBOSE], "");
    facts.tell(&format!("mapped {pages} of {pages}"));
    let told = facts.line();
    let wanted = "populate from 1 MiB on, pool of 32 MiB, next allocator";
    assert!(told.contains(wanted), "{told}");
    let facts = Facts::of(shop, &[LOCK, POOL], "");
    let told = facts.ours.join("\n");
    let wanted = "pool is left out: lock=onfault locks all memory";
    let is_locked = !told.contains("lock=onfault is left out");
    assert!(!is_locked || told.contains(wanted), "{told}");
    Ok(Completion::Completed)
}

const POOL_RELEASED: (&str, &str) = ("TENURE_POOL_RELEASED", "1");

fn pool_released(shop: &Workshop) -> Verdict {
    const LIMIT: Duration = Duration::from_secs(60);
    const KEPT: &str = "kept by the page pool";
    if !can_recycle() {
        let reason = "needs UFFDIO_MOVE (Linux 6.8), and no strict overcommit";
        return Ok(Completion::ignored_with(reason));
    }
    const POOL: (&str, &str) = ("TENURE_POOL", "32M");
    let facts = Facts::of(shop, &[POOL, MUNMAP, STATS], "replace");
    assert!(!facts.line().contains(KEPT), "{}", facts.line());
    let start = Instant::now();
    let keeps = || {
        let options = &[POOL, POOL_RELEASED, MUNMAP, STATS];
        Facts::of(shop, options, "replace").line().contains(KEPT)
    };
    // A worker may get no CPU before the program ends.
    while !keeps() {
        if start.elapsed() > LIMIT {
            assert_ne!(pressure::level(), Level::None, "the pool has kept nothing");
            let reason = "memory is short, and the pool keeps nothing";
            return Ok(Completion::ignored_with(reason));
        }
    }
    Ok(Completion::Completed)
}

fn can_recycle() -> bool {
    const UFFD_FEATURE_MOVE: u64 = 1 << 16;
    let features = tenure::Features::get();
    let moves = features
        .userfaultfd
        .is_ok_and(|found| found & UFFD_FEATURE_MOVE != 0);
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    moves && features.pagemap_scan.is_ok() && mode.trim() != "2"
}

fn pool_released_alone(shop: &Workshop) -> Verdict {
    for options in [
        &[POOL_RELEASED, MUNMAP][..],
        &[POOL_RELEASED, ("TENURE_POOL", "32M")],
    ] {
        let facts = Facts::of(shop, options, "");
        let told = facts.ours.join("\n");
        assert!(
            told.contains("pool-released is left out: it needs"),
            "{told}"
        );
    }
    Ok(Completion::Completed)
}

/// Runs the program under a limit of the shell's `ulimit`; `None` if it is refused.
fn facts_under(shop: &Workshop, limit: &str, options: Options) -> Option<Facts> {
    let program = shop.compile(&project("tests/preload/facts/facts.c"), &[]);
    let mut command = Command::new("sh");
    let script = format!("ulimit {limit} || exit 77; exec \"$@\"");
    command.args(["-c", &script, "sh"]);
    command.arg("env");
    command.arg(format!("LD_PRELOAD={}", library().display()));
    command.args(
        options
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    let output = output_in_time(command.arg(program));
    (output.status.code() != Some(77)).then(|| Facts::from(&output))
}

fn lock(shop: &Workshop) -> Verdict {
    // Without CAP_IPC_LOCK all mappings must fit RLIMIT_MEMLOCK.
    let facts = Facts::of(shop, &[LOCK], "");
    if !facts.ours.is_empty() {
        return Ok(Completion::ignored_with(
            "RLIMIT_MEMLOCK does not allow it here",
        ));
    }
    facts.tell("locked yes");
    facts.tell(&format!("mapped 0 of {}", (8 << 20) / tenure::page_size()));
    Ok(Completion::Completed)
}

/// V8 ends the program when the kernel refuses to discard its pages.
fn lock_with_node(_: &Workshop) -> Verdict {
    const SCRIPT: &str = "let all = []; \
        for (let i = 0; i < 300000; i++) { all.push({ i, text: 'x' + i }); } \
        all = null; console.log(eval('1 + 1'))";
    if find("node").is_none() {
        return Ok(Completion::ignored_with("there is no node here"));
    }
    let mut node = Command::new("node");
    node.args(["-e", SCRIPT]);
    let output = output_in_time(put_under(&mut node, &[LOCK], &[]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    if told.contains("lock=onfault") {
        return Ok(Completion::ignored_with(told));
    }
    assert!(output.status.success(), "{told}");
    assert_eq!(output.stdout, b"2\n");
    Ok(Completion::Completed)
}

fn lock_on_old_kernel(shop: &Workshop) -> Verdict {
    const OLD_KERNEL: (&str, &str) = ("TENURE_WITHOUT", "madv_dontneed_locked");
    let facts = Facts::of(shop, &[LOCK, OLD_KERNEL], "");
    let Facts { lines, ours } = &facts;
    if lines.contains(&"locked no".to_owned()) {
        return Ok(Completion::ignored_with(
            "RLIMIT_MEMLOCK does not allow it here",
        ));
    }
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(ours[0].contains("Linux 5.18"), "{ours:?}");
    Ok(Completion::Completed)
}

fn refused_lock(shop: &Workshop) -> Verdict {
    let Some(facts) = facts_under(shop, "-l 0", &[LOCK]) else {
        return Ok(Completion::ignored_with("ulimit is refused"));
    };
    if facts.ours.is_empty() {
        return Ok(Completion::ignored_with("this user may lock any amount"));
    }
    let told = facts.line();
    assert!(
        told.starts_with("tenure: lock=onfault is left out: "),
        "{told}"
    );
    facts.tell("locked no");
    Ok(Completion::Completed)
}

fn heap_and_lock(shop: &Workshop) -> Verdict {
    let Some(facts) = facts_under(shop, "-l 8192", &[LOCK, HEAP, STATS]) else {
        return Ok(Completion::ignored_with("ulimit is refused"));
    };
    if facts.lines.contains(&"locked no".to_owned()) {
        return Ok(Completion::ignored_with(
            "8 MiB are not enough for this user",
        ));
    }
    facts.tell("locked yes");
    // Locking on fault brings in no page of the heap that is not used, huge or not.
    let huge_pages = (2 << 20) / tenure::page_size();
    let block = |pages| facts.lines.contains(&format!("block {pages}"));
    assert!(block(1) || block(huge_pages), "{:?}", facts.lines);
    assert!(facts.line().contains("heap: "), "{}", facts.line());
    Ok(Completion::Completed)
}

fn few_addresses(shop: &Workshop) -> Verdict {
    // KiB of addresses: enough for the program but not for tenure.
    let Some(facts) = facts_under(shop, "-v 60000", &[HEAP, MUNMAP, STATS]) else {
        return Ok(Completion::ignored_with("ulimit is refused"));
    };
    let told = facts.line();
    assert!(
        told.starts_with("tenure: everything is left out: "),
        "{told}"
    );
    // The heap takes addresses as it needs them.
    let Some(facts) = facts_under(shop, "-v 4000000", &[HEAP, MUNMAP, STATS]) else {
        return Ok(Completion::ignored_with("ulimit is refused"));
    };
    assert!(!facts.line().contains("left out"), "{}", facts.line());
    Ok(Completion::Completed)
}

fn exit(shop: &Workshop) -> Verdict {
    let facts = Facts::of(shop, &[EXIT], "");
    if !facts.ours.is_empty() {
        let reason = format!("tear-down is refused here: {:?}", facts.ours);
        return Ok(Completion::ignored_with(reason));
    }
    // /proc has `children` only with CONFIG_PROC_CHILDREN.
    if !std::path::Path::new("/proc/thread-self/children").exists() {
        return Ok(Completion::ignored_with(
            "/proc does not tell children here",
        ));
    }
    facts.tell("helper tenure-teardown");
    Ok(Completion::Completed)
}

fn summary(shop: &Workshop) -> Verdict {
    for way in ["", "_exit", "quick_exit", "close", "fork"] {
        let facts = Facts::of(shop, &[HEAP, STATS], way);
        let told = facts.line();
        assert!(told.starts_with("tenure: facts (process "), "{way}: {told}");
        assert!(told.contains("heap: "), "{way}: {told}");
    }
    Ok(Completion::Completed)
}

/// A handler interrupts the program with a lock of the heap held in one of a few runs: the
/// summary must not wait for it.
fn exit_in_handler(shop: &Workshop) -> Verdict {
    let program = shop.compile(&project("tests/preload/facts/exit_in_handler.c"), &[]);
    for run in 0..12 {
        let mut command = Command::new(&program);
        command.arg((5000 + 731 * run).to_string());
        let output = output_in_time(put_under(&mut command, &[HEAP, STATS], &[]));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "run {run}: {told}");
    }
    Ok(Completion::Completed)
}

fn verbose(shop: &Workshop) -> Verdict {
    let facts = Facts::of(shop, &[VERBOSE], "");
    let told = facts.line();
    assert!(told.starts_with("tenure: facts (process "), "{told}");
    assert!(
        told.contains("): next allocator /") && told.contains("libc"),
        "{told}"
    );
    let facts = Facts::of(
        shop,
        &[VERBOSE, LOW_THRESHOLD, MUNMAP, DISCARD, POPULATE],
        "",
    );
    let told = facts.line();
    let wanted = "heap from 64 KiB on, munmap=background, discard=background, \
                  populate from 1 MiB on, next allocator";
    assert!(told.contains(wanted), "{told}");
    const DECAYS: Options = &[
        VERBOSE,
        ("TENURE_HEAP_DIRTY_DECAY", "2s"),
        ("TENURE_HEAP_MUZZY_DECAY", "0"),
        ("TENURE_MUNMAP", "off"),
    ];
    let facts = Facts::of(shop, DECAYS, "");
    let told = facts.line();
    let wanted = "heap from 0 bytes on, dirty decay 2000 ms, muzzy decay 0 ms, next allocator";
    assert!(told.contains(wanted), "{told}");
    Ok(Completion::Completed)
}

fn wrong(shop: &Workshop) -> Verdict {
    let facts = Facts::of(shop, &[("TENURE_HEAP", "yes"), ("TENURE_MUNMAP", "")], "");
    assert_eq!(
        facts.line(),
        "tenure: TENURE_HEAP=yes is left out: give 1 or 0"
    );
    Ok(Completion::Completed)
}

fn behind(shop: &Workshop) -> Verdict {
    let counter = shop.compile_library("counter.c");
    let program = shop.compile(&project("tests/preload/facts/passed_on.c"), &[]);
    for (name, options) in SETS {
        let mut command = Command::new(&program);
        let seen = verdict(put_under(&mut command, options, &[&counter]));
        seen.map_err(|error| format!("with {name}: {}", error.message().unwrap_or("")))?;
    }
    Ok(Completion::Completed)
}

/// Unmaps, discards and shrinks a range of so many mappings; so many threads discard it at
/// the same time.
fn many(shop: &Workshop, mappings: &str, threads: &str) -> Verdict {
    let program = shop.compile(&project("tests/preload/facts/many_mappings.c"), &[]);
    let mut command = Command::new(program);
    command.args([mappings, threads]);
    let with = verdict(put_under(&mut command, &[MUNMAP, DISCARD], &[]))?;
    // As before Linux 6.11.
    verdict(command.env("TENURE_WITHOUT", "procmap_query"))?;
    Ok(with)
}

/// As many mappings as a process may have by default, but for its own.
fn many_by_threads(shop: &Workshop) -> Verdict {
    many(shop, "60000", "40")
}

fn million(shop: &Workshop) -> Verdict {
    const SETTING: &str = "/proc/sys/vm/max_map_count";
    let raised = lock_setting(SETTING).and_then(|lock| change_setting(SETTING, lock, "1100000"));
    let Some(_raised) = raised else {
        return Ok(Completion::ignored_with(
            "vm.max_map_count may not be raised here",
        ));
    };
    many(shop, "1000000", "8")
}
