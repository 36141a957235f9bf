use rustix::process::{Pid, Signal, kill_process};

use super::job::Job;
use super::process::ARGUMENT;
use super::{Environment, Worker, work};

/// Is a worker, when a test has started this program again for that.
#[test]
fn entry() {
    if std::env::args().any(|argument| argument == ARGUMENT) {
        work().unwrap();
    }
}

fn start(job: &Job) -> Worker {
    Worker::start(&Environment::new(), job, None).unwrap()
}

#[test]
fn worker_that_is_told_to_go_on_answers() {
    let mut worker = start(&Job::Free(1 << 20));
    worker.wait_until_ready().unwrap();
    worker.go_on().unwrap();
    assert!(worker.done().unwrap().seconds > 0.0);
}

#[test]
fn failed_worker_says_why() {
    let error = start(&Job::Free(usize::MAX / 2))
        .wait_until_ready()
        .unwrap_err();
    assert!(error.to_string().contains("calloc of"), "{error}");
}

#[test]
fn killed_worker_is_reported() {
    for is_error in [false, true] {
        let mut worker = start(&Job::Free(1 << 20));
        worker.wait_until_ready().unwrap();
        let pid = Pid::from_raw(worker.pid() as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        match is_error {
            false => assert!(worker.ending().unwrap().is_killed),
            true => assert!(worker.done().unwrap_err().to_string().contains("killed")),
        }
    }
}
