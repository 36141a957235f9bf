//! Replay of the fuzz targets over the corpus, and over random bytes.

use std::fs;
use std::path::Path;

use super::{parsers, registries};

/// The number of random inputs besides those of the corpus.
const RANDOM_INPUTS: usize = 2000;

fn replay(target: &str, body: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = root.join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        run(body, &fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "nothing in {}", corpus.display());
    let mut random = fastrand::Rng::with_seed(17);
    for _ in 0..RANDOM_INPUTS {
        let len = random.usize(..200);
        let data: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        run(body, &data);
    }
}

/// Runs the target on one input, and prints the input if it panics:
/// `fuzz/README.md` tells how to run it alone.
fn run(body: fn(&[u8]), data: &[u8]) {
    struct Report<'a>(&'a [u8]);
    impl Drop for Report<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let report = Report(data);
    body(data);
    drop(report);
}

#[test]
fn registries_on_any_input_match_models() {
    replay("registries", registries);
}

#[test]
fn parsers_on_any_text_do_not_panic() {
    replay("parsers", parsers);
}
