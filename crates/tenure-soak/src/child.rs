//! A forked child: checks that it has its parent's memory, byte for byte, and works on.
//!
//! The child is a copy of one thread of many. It must not print, panic or take a lock of
//! the standard library, because another thread may have held that lock during the fork.
//! It reports a mismatch on the board.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, ptr};

use fastrand::Rng;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::model::{Checked, mismatch};
use super::plan::Plan;
use super::step::{Count, Step, Verb};
use super::worker::{CHILD, Worker};
use super::{handlers, shortage};

/// How long a child may take: less than the supervisor grants its parent.
const ALARM_SECONDS: u32 = 45;

/// How many pages one step of a child changes at most, because they then exist twice.
const MAX_PAGES: usize = 1024;

/// Forks, and waits for the child.
pub fn fork(worker: &mut Worker, step: &Step, steps: usize, has_handlers: bool) -> Checked {
    let board = worker.tools.board;
    let _one_at_a_time = CHILD.lock();
    handlers::IS_ACTIVE.store(has_handlers, Relaxed);
    worker.tools.begin();
    // SAFETY: the child keeps to the rules in the module's documentation.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return mismatch("fork", "a child", io::Error::last_os_error());
    }
    if pid == 0 {
        let mut done = Vec::new();
        let result = run_child(worker, step, steps, &mut done);
        let status = i32::from(result.is_err());
        let who = format!("a child of {} ({step:?}) after {done:?}", worker.name());
        board.check(&who, result);
        // SAFETY: the call ends the child without running destructors or exit handlers.
        unsafe { libc::_exit(status) };
    }
    board.add(Count::Forks, 1);
    let mut status = 0;
    // SAFETY: `status` is writable, and only this thread waits for the child.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return mismatch("waitpid", "the end of a child", error);
        }
    }
    let found = match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
        (true, _) if libc::WEXITSTATUS(status) == 0 => return Ok(()),
        (true, _) => format!("exit status {}", libc::WEXITSTATUS(status)),
        (false, libc::SIGALRM) => format!("a hang of {ALARM_SECONDS} s"),
        (false, signal) => format!("signal {signal}"),
    };
    mismatch("a child", "exit status 0", found)
}

fn run_child(worker: &mut Worker, step: &Step, steps: usize, done: &mut Vec<Step>) -> Checked {
    set_signals();
    if worker.tools.has_lacked_descriptors() {
        // tenure could not protect it, and reports all of it purged.
        for slot in &mut worker.slots {
            drop(slot.take_if(|slot| slot.is_volatile()));
        }
    }
    shortage::end_in_child();
    worker.tools.begin();
    handlers::check_in_child()?;
    worker.forget_locks();
    let board = worker.tools.board;
    let before = board.get(Count::PagesChecked);
    check_all(worker)?;
    worker.ready.check_in_child()?;
    let mut plan = Plan::new(step.number, worker.tools.patterns.usize(..1 << 20));
    let mut random = Rng::with_seed(step.number);
    while done.len() < steps {
        let planned = plan.step();
        // The plan's slots have other sizes than the worker's.
        let Some(Some(slot)) = worker.slots.get(planned.slot) else {
            continue;
        };
        // A change of shared memory would be a change of the parent's, and a new mapping
        // would have the size of the parent's next one.
        if slot.kind.is_shared() || matches!(planned.verb, Verb::Renew(..)) {
            continue;
        }
        let first = random.usize(..slot.pages.len());
        let count = random.usize(1..=(slot.pages.len() - first).min(MAX_PAGES));
        let step = Step {
            first,
            count,
            ..planned
        };
        done.push(step);
        if !worker.perform_on_slot(&step)? {
            done.pop();
        }
    }
    check_all(worker)?;
    let drained = tenure::drain(Some(Duration::from_secs(30)));
    worker.tools.expect(drained, &[])?;
    let checked = board.get(Count::PagesChecked) - before;
    board.add(Count::PagesCheckedByChildren, checked);
    Ok(())
}

fn check_all(worker: &mut Worker) -> Checked {
    let board = worker.tools.board;
    let mut slots = worker.slots.iter_mut().flatten();
    slots.try_for_each(|slot| slot.check_all(board))
}

/// Has the child die with its parent or when it hangs, and interrupts its calls every
/// millisecond, because its parent's signals do not reach it.
fn set_signals() {
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    // Without it a child of a killed parent ends at its own alarm.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // SAFETY: the calls change settings of this process only; `timer` is readable.
    unsafe {
        libc::alarm(ALARM_SECONDS);
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut());
    }
}
