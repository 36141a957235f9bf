//! The CPUs on which tenure's background threads run.

use std::sync::atomic::{AtomicU64, Ordering};

/// The CPUs of the process, as `sched_setaffinity(2)` takes them: the affinity
/// of the main thread when the program, or the library that contains tenure,
/// was loaded. No bit is set where the kernel did not tell.
static PROCESS_CPUS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Runs before `main`, because the main thread may pin itself later.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = record_process_cpus;

extern "C" fn record_process_cpus() {
    let bytes = size_of_val(&PROCESS_CPUS);
    let cpus = PROCESS_CPUS.as_ptr().cast_mut().cast();
    // SAFETY: the call writes at most `bytes` to the static, which consists of
    // atomics and may therefore change behind a shared reference.
    unsafe { libc::sched_getaffinity(libc::getpid(), bytes, cpus) };
}

/// Lets this thread run on the CPUs of the process. If the kernel refuses (all
/// of them have left the cpuset, or none was recorded), nothing changes.
pub(super) fn run_on_process_cpus() {
    let bytes = size_of_val(&PROCESS_CPUS);
    // SAFETY: the call reads `bytes` of the static and affects this thread.
    unsafe { libc::sched_setaffinity(0, bytes, PROCESS_CPUS.as_ptr().cast()) };
}

/// Returns how many CPUs the process could use when it was loaded; at least one.
pub(crate) fn process_cpu_count() -> usize {
    let counts = PROCESS_CPUS
        .iter()
        .map(|cpus| cpus.load(Ordering::Relaxed).count_ones());
    (counts.sum::<u32>() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use crate::ground::sys::thread::Thread;

    #[test]
    fn background_thread_of_pinned_caller_has_cpus_of_process() {
        let process_cpus = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let outcome = std::thread::scope(|scope| {
            let pinned = scope.spawn(|| {
                let mut one = CpuSet::new();
                let first = (0..CpuSet::MAX_CPU).find(|&cpu| process_cpus.is_set(cpu));
                one.set(first.unwrap());
                sched_setaffinity(None, &one).unwrap();
                let cpus = || sched_getaffinity(None).unwrap();
                let background = Thread::start_background(c"tenure-test", cpus).unwrap();
                assert_eq!(background.join().unwrap(), process_cpus);
                assert_eq!(
                    Thread::start(c"tenure-test", cpus).unwrap().join().unwrap(),
                    one
                );
            });
            pinned.join()
        });
        outcome.unwrap();
    }
}
