//! The command line.

use clap::Parser;

use tenure_bench::EXIT_STATUS;

/// Use everything that tenure does at once, and check every byte
///
/// Threads populate, lock, lazily free, mark volatile, discard and unmap random
/// parts of their memory, of all kinds, and use caches, locked files and secret
/// buffers. Meanwhile they fork, signals interrupt them, and memory runs short.
/// A model knows what each page must hold. The run ends at a wrong byte, a purged
/// page that is not reported, a reported page that was not purged, an unexpected
/// error and a call that hangs; the last operations are printed with the seed.
///
/// All of this happens in a process of its own, which this one watches. Where a
/// memory cgroup can be made (as root), that process runs in one with a limit
/// below what its threads hold, so that the kernel must reclaim pages. Elsewhere
/// the kernel reclaims pages only on request (MADV_PAGEOUT, purge_all).
///
/// The seed and a thread's number alone decide what that thread does; they do not
/// decide which pages the kernel reclaims, or when.
#[derive(Debug, Parser)]
#[command(name = "tenure-soak", version, after_help = EXIT_STATUS)]
pub struct SoakArguments {
    /// Run for N minutes; fractions are allowed
    #[arg(long, value_name = "N", default_value = "1", value_parser = minutes)]
    pub minutes: f64,

    /// Make all decisions from S
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,

    /// Use N threads [default: 2 for each CPU, at most 8]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=crate::MAX_THREADS as i64)
    )]
    pub threads: Option<u32>,

    /// Limit the memory cgroup to SIZE MiB, at least 128 for each thread [default:
    /// 160 for each thread]
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(u64).range(128..=1 << 24))]
    pub memory: Option<u64>,

    /// Use a million objects at once instead of 100,000
    #[arg(long)]
    pub long: bool,

    /// Only admit memory, take it, populate, lock and fill a cache, in a cgroup of 256 MiB,
    /// while the memory limits often cannot be read
    #[arg(long, conflicts_with_all = ["memory", "long"])]
    pub unreadable_limits: bool,

    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes @ 0.01..=100_000.0) => Ok(minutes),
        _ => Err("give a number of minutes, at least 0.01".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soak(line: &[&str]) -> Option<SoakArguments> {
        SoakArguments::try_parse_from(["tenure-soak"].iter().chain(line)).ok()
    }

    #[test]
    fn arguments_default_to_a_minute_and_seed_1() {
        let arguments = soak(&[]).unwrap();
        assert_eq!((arguments.minutes, arguments.seed), (1.0, 1));
        assert_eq!(soak(&["--minutes", "0.5"]).unwrap().minutes, 0.5);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        let wrong = "--minutes=0 --minutes=NaN --minutes=inf --threads=0 --threads=65 --memory=1";
        for wrong in wrong.split(' ').chain(["--seed=-1"]) {
            assert!(soak(&[wrong]).is_none(), "{wrong}");
        }
    }
}
