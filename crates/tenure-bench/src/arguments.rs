//! The arguments of `tenure bench` and `tenure report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::EXIT_STATUS;

/// Measure tenure beside the older ways, on this machine's memory
///
/// Each experiment does the same work once in tenure's way and once in each
/// older way. The ways take turns (A B C, A B C, ...) after one warm-up round
/// that is not counted, and each checks its own answer. Reported are the
/// median, the smallest and the largest of every figure, and the ratio to the
/// baseline, computed round by round.
///
/// Sizes shrink to the memory that is available, to RLIMIT_MEMLOCK and to what
/// the cgroup leaves, and the output says so. As root, populate enlarges the pool of
/// huge pages where it must, lock raises vm.max_map_count, and lazy_free and heap
/// make memory cgroups; all is put back.
/// Files are made under TMPDIR (/tmp when it is not set), have no name and are
/// gone when the command ends.
///
/// An experiment that fails is reported in its place; the others still run,
/// and the exit status is 1.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct BenchArguments {
    /// Experiments to run, in this order [default: all six]
    #[arg(value_enum, value_name = "EXPERIMENT")]
    pub experiments: Vec<Name>,

    /// Use sizes and rounds that let all six experiments end within a minute on 2
    /// CPUs and 24 GiB. Without the option they end within ten. An experiment that is
    /// asked for by name shows more: populate its full sizes, in about 6 minutes;
    /// lazy_free all numbers of processes and threads, in about 9; volatile threads,
    /// sizes up to 1 GiB and 100,000 others beside a page, in about 5; release sizes up
    /// to 8 GiB, huge pages, ways and a process that is killed, in about 5; heap more
    /// rounds and blocks of all sizes, in about 10
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,

    /// Use the sizes of the reference: populate measures 2 MiB, 128 MiB and 4 GiB
    /// of every kind of memory, in every way, in about 6 minutes; lock makes
    /// 15,000,000 reads in 5 GiB, in about 10; lazy_free has 512 chunks in each
    /// process and a limit of 2 GiB, in about 15; volatile refills its memory 100 times,
    /// in about 12; release goes up to three quarters of the memory there is, with up to
    /// 32 threads, in about 15 on 24 GiB; heap counts for longer, and has blocks of all
    /// sizes, in about 25. The largest have one to three rounds, unless --rounds says more
    #[arg(long)]
    pub full: bool,

    /// Measure exactly N rounds [default: 11, 41 of short ones, or as many as there
    /// is time for, but at least 3; with --quick 5, and at least 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Run only these of all experiments, in the order of the list, in the sizes
    /// that they have among all
    #[arg(
        long,
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with = "experiments"
    )]
    pub only: Vec<Name>,

    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,

    /// Write the JSON document to FILE as well: a record for `tenure report`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Make the random contents and offsets from N
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Make one page of what `tenure bench --json` has printed
///
/// The page has, for each experiment, a sentence that says what came out, plots,
/// all figures as tables, and the ratios of the published reference figures beside
/// those measured here. It is one HTML file that needs no network and no script;
/// it can be printed, and read on a phone. Experiments that this version does not
/// know are shown as tables and plots as well.
///
/// Several records of the same experiment stand side by side: of two machines, or
/// of before and after a change. Records of different experiments become one page.
///
///   tenure bench --quick --json | tenure report -o page.html
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS, verbatim_doc_comment)]
pub struct ReportArguments {
    /// Files with what `tenure bench --json` has printed, or - for standard input
    /// [default: -]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Make Markdown instead of HTML: the sentences and the tables, without plots
    #[arg(long)]
    pub markdown: bool,

    /// Write to PAGE and print that path, instead of writing to standard output
    #[arg(short, long, value_name = "PAGE")]
    pub output: Option<PathBuf>,
}

/// The experiments.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Name {
    /// Fault a fresh mapping in, whole
    Populate,
    /// Read a mapped file at random while what was read stays locked
    Lock,
    /// Take a block, copy into it, search in it, free it, under a memory limit
    LazyFree,
    /// Refill buffers that the kernel may purge between two uses
    Volatile,
    /// Unmap or discard memory: how long does the caller wait, and everybody else?
    Release,
    /// Make and free blocks with one malloc and another
    Heap,
    /// Populate from pages that were released before; runs only if it is named
    Pool,
    /// Look values up in caches, also below a memory limit; runs only if it is named
    Cache,
}

impl Name {
    /// Those that run when none is named.
    const ALL: [Self; 6] = [
        Self::Populate,
        Self::Lock,
        Self::LazyFree,
        Self::Volatile,
        Self::Release,
        Self::Heap,
    ];

    /// Returns the name as it stands on the command line.
    pub fn as_str(self) -> &'static str {
        [
            "populate",
            "lock",
            "lazy_free",
            "volatile",
            "release",
            "heap",
            "pool",
            "cache",
        ][self as usize]
    }
}

impl BenchArguments {
    /// Returns the experiments asked for, each once, in the order asked for;
    /// all six when none is named.
    pub fn chosen(&self) -> Vec<Name> {
        let named = match self.only.is_empty() {
            true => &self.experiments[..],
            false => &self.only,
        };
        let named = match named.is_empty() {
            true => &Name::ALL,
            false => named,
        };
        let mut chosen = Vec::new();
        for &name in named {
            if !chosen.contains(&name) {
                chosen.push(name);
            }
        }
        chosen
    }
}

#[cfg(test)]
#[path = "../tests/unit/arguments.rs"]
mod tests;
