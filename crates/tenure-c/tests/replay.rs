//! What the fuzzer has found for the C interface, and calls of any kind. In a process
//! of its own with one thread, for it unmaps memory.

mod fuzz;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use libtest_mimic::{Arguments, Trial};

/// How many inputs of any bytes are run beside those of the corpus.
const RANDOM_INPUTS: usize = 500;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let replay = Trial::test("any_call_is_answered_and_harms_nothing", || {
        replay();
        Ok(())
    });
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

/// Says which input it was, if it fails.
fn run(data: &[u8]) {
    struct Told<'a>(&'a [u8]);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let told = Told(data);
    fuzz::c_interface(data);
    drop(told);
}
