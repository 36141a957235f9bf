//! A forked child: has what its parent has, byte for byte, and goes on by itself.
//!
//! It is a copy of one thread of many: it must not use a lock of the standard
//! library's, print or panic, for another thread may have been in the midst of
//! that. What is wrong it writes to the board.

use std::{io, time::Duration};

use fastrand::Rng;

use super::{
    board::Count,
    model::Wrong,
    plan::Plan,
    step::{Step, Verb},
    worker::{CHILD, Worker, guard},
};

/// A child that takes longer hangs. Before its parent counts as stalled.
const ALARM_SECONDS: u32 = 45;

/// What a child changes at most, for it is there twice then.
const MOST_PAGES: usize = 1024;

/// Forks, and waits for the child.
pub fn fork(worker: &mut Worker, step: &Step, steps: usize) -> Result<(), Wrong> {
    let board = worker.tools.board;
    let _one_at_a_time = guard(&CHILD);
    // SAFETY: the child does what is said above.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Wrong::new("fork", "a child", io::Error::last_os_error()));
    }
    if pid == 0 {
        let mut done = Vec::new();
        let is_right = match be_a_child(worker, step, steps, &mut done) {
            Ok(()) => true,
            Err(wrong) => {
                let who = format!("a child of {} ({step:?}) that has done", worker.who());
                board.fail(&format!("{who} {done:?}"), &wrong);
                false
            }
        };
        // SAFETY: it ends this process, and calls nothing else.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    board.add(Count::Forks, 1);
    let mut status = 0;
    loop {
        // SAFETY: a child of ours that nobody else waits for.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Wrong::new("waitpid", "the end of a child", error));
        }
    }
    let found = match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
        (true, _) if libc::WEXITSTATUS(status) == 0 => return Ok(()),
        (true, _) => format!("exit status {}", libc::WEXITSTATUS(status)),
        (false, libc::SIGALRM) => format!("it hung for {ALARM_SECONDS} s"),
        (false, signal) => format!("it was ended by signal {signal}"),
    };
    Err(Wrong::new("a child", "exit status 0", found))
}

fn be_a_child(
    worker: &mut Worker,
    step: &Step,
    steps: usize,
    done: &mut Vec<Step>,
) -> Result<(), Wrong> {
    die_with_the_parent();
    worker.forget_locks();
    let board = worker.tools.board;
    let before = board.get(Count::PagesChecked);
    check_all(worker)?;
    worker.ready.check_in_child()?;
    let mut plan = Plan::new(step.number, worker.tools.stamps.usize(..1 << 20));
    let mut random = Rng::with_seed(step.number);
    while done.len() < steps {
        let planned = plan.step();
        let Some(Some(slot)) = worker.slots.get(planned.slot) else {
            continue;
        };
        // The plan is another one's: its slots have other sizes, and what is not
        // about memory is its own.
        let pages = slot.pages.len();
        let is_about_memory = !matches!(
            planned.verb,
            Verb::LockAll(..)
                | Verb::Delay { .. }
                | Verb::Drain
                | Verb::PurgeAll
                | Verb::Cache { .. }
                | Verb::LockedFile { .. }
                | Verb::Secret { .. }
                | Verb::Fork { .. }
                | Verb::Renew { .. }
        );
        // What is shared is the parent's, too.
        if !is_about_memory || slot.kind.is_shared() {
            continue;
        }
        let first = random.usize(..pages);
        let count = random.usize(1..=(pages - first).min(MOST_PAGES));
        let taken = Step {
            first,
            count,
            ..planned
        };
        done.push(taken);
        worker.use_memory(&taken)?;
    }
    check_all(worker)?;
    let drained = tenure::drain(Some(Duration::from_secs(30)));
    worker.tools.expect(drained, &[])?;
    board.add(
        Count::PagesCheckedByChildren,
        board.get(Count::PagesChecked) - before,
    );
    Ok(())
}

fn check_all(worker: &mut Worker) -> Result<(), Wrong> {
    let board = worker.tools.board;
    for slot in worker.slots.iter_mut().flatten() {
        slot.check((0, slot.pages.len()), board)?;
    }
    Ok(())
}

fn die_with_the_parent() {
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let often = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    // SAFETY: settings of this process, by values.
    unsafe {
        libc::alarm(ALARM_SECONDS);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // Its parent's signals do not reach it: these interrupt its calls.
        libc::setitimer(libc::ITIMER_PROF, &often, std::ptr::null_mut());
    }
}
