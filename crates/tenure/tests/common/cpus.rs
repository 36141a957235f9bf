//! Which CPU the thread runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Runs `work` without being moved to another CPU.
pub fn on_one_cpu(work: impl FnOnce()) {
    let before = sched_getaffinity(None).unwrap();
    move_to(sched_getcpu());
    work();
    sched_setaffinity(None, &before).unwrap();
}

/// Runs `work` once on each CPU that this thread may use.
pub(super) fn on_each_cpu(work: impl Fn()) {
    let before = sched_getaffinity(None).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)) {
        move_to(cpu);
        work();
    }
    sched_setaffinity(None, &before).unwrap();
}

fn move_to(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).unwrap();
}
