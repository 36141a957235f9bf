//! `tenure soak`: its arguments.

use clap::Args;

use super::EXIT_STATUS;

/// Use everything that tenure does at once, and check every byte
///
/// Threads populate, lock, lazily free, mark volatile, discard and unmap random
/// parts of their memory, of all kinds, and use caches, locked files and secret
/// buffers. Meanwhile they fork, are interrupted by signals, and memory is short.
/// What each page has to hold is kept in a model: a wrong byte, a page lost
/// without a word, one reported lost that is not, or a call that hangs or answers
/// what it should not, ends the run, and the last operations are printed with the
/// seed.
///
/// All of it happens in a process of its own, which this one watches. Where a
/// memory cgroup can be made (as root), that process lives in one with a limit
/// below what its threads hold, so that the kernel has to take pages. Elsewhere
/// pages go only because the kernel is asked for it (MADV_PAGEOUT, purge_all).
///
/// What each thread does follows from the seed and its number alone; what the
/// kernel takes, and when, does not.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct SoakArguments {
    /// Go on for N minutes; fractions are allowed
    #[arg(long, value_name = "N", default_value = "1", value_parser = minutes)]
    pub minutes: f64,

    /// Make all decisions from S
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,

    /// Use N threads [default: 2 for each CPU, at most 8]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=crate::soak::MOST_THREADS)
    )]
    pub threads: Option<u32>,

    /// Limit the memory cgroup to SIZE MiB, at least 128 for each thread [default:
    /// 160 for each thread]
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(u64).range(128..=1 << 24))]
    pub memory: Option<u64>,

    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes @ 0.01..=100_000.0) => Ok(minutes),
        _ => Err("a number of minutes, at least 0.01, is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn soak(line: &[&str]) -> Option<SoakArguments> {
        let line = ["tenure", "soak"].iter().chain(line);
        match Cli::try_parse_from(line).ok()?.command {
            Command::Soak(arguments) => Some(arguments),
            _ => None,
        }
    }

    #[test]
    fn a_minute_with_seed_1_is_the_default() {
        let arguments = soak(&[]).unwrap();
        assert_eq!((arguments.minutes, arguments.seed), (1.0, 1));
        assert_eq!(soak(&["--minutes", "0.5"]).unwrap().minutes, 0.5);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            ["--minutes", "0"],
            ["--minutes", "NaN"],
            ["--minutes", "inf"],
            ["--threads", "0"],
            ["--threads", "65"],
            ["--memory", "1"],
            ["--seed", "-1"],
        ] {
            assert!(soak(&wrong).is_none(), "{wrong:?}");
        }
    }
}
