//! Replays the corpus of the C interface's fuzzer, and random inputs. The test has a process
//! of its own with one thread, because it unmaps memory.

mod fuzz;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use libtest_mimic::{Arguments, Trial};

/// The number of random inputs, besides those of the corpus.
const RANDOM_INPUTS: usize = 500;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let replay = Trial::test(
        "any_call_returns_documented_result_and_keeps_contents",
        || {
            replay();
            Ok(())
        },
    );
    libtest_mimic::run(&arguments, vec![replay]).exit_code()
}

fn replay() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = root.join("fuzz/corpus/c_interface");
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        run(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "nothing in {}", corpus.display());
    let mut random = fastrand::Rng::with_seed(17);
    for _ in 0..RANDOM_INPUTS {
        let len = random.usize(..160);
        let data: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        run(&data);
    }
}

/// Runs one input, and prints it if it fails.
fn run(data: &[u8]) {
    struct PrintOnPanic<'a>(&'a [u8]);
    impl Drop for PrintOnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let print_on_panic = PrintOnPanic(data);
    fuzz::c_interface(data);
    drop(print_on_panic);
}
