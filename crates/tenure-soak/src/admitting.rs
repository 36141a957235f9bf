//! The soak of admission alone: threads take, in a memory cgroup, only what was admitted,
//! while the limits often cannot be read. That the kernel kills the process is a failure.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tenure::populate::{PopulateOptions, Strategy};
use tenure::volatile::Priority;
use tenure::{Access, LockMode, Mapping, page_size};

use super::admission::admit_at_once;
use super::board::Board;
use super::model::{Checked, mismatch};
use super::ready::{Cache, Ready};
use super::report::Setting;
use super::shortage::run_out_of_descriptors;
use super::step::{CACHE_KEYS, CacheUse, Populate, Verb};
use super::verbs::Tools;

/// The limit that the sizes are for.
pub const LIMIT_BYTES: usize = 256 << 20;

/// Has the kernel answer as before Linux 5.9, where no thread has a descriptor table of its
/// own: while no descriptor is left nothing can read the limits.
pub fn refuse_own_descriptor_tables() -> Result<()> {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jt,
        k,
    };
    let load = |offset: usize| {
        let code = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        step(code, 0, offset as u32)
    };
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // The lower half of the third argument: its flags.
    let flags = std::mem::offset_of!(libc::seccomp_data, args) + 16;
    let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut program = [
        load(std::mem::offset_of!(libc::seccomp_data, nr)),
        step(is_equal, 3, libc::SYS_close_range as u32),
        load(flags),
        step(is_equal, 1, libc::CLOSE_RANGE_UNSHARE),
        step(libc::BPF_RET | libc::BPF_K, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the calls restrict this process; `program` and its filter are readable.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("refusing close_range"),
    }
}

/// Works until the board says to stop.
pub fn round(board: &'static Board, setting: &Setting, max_steps: u64, seed: u64) {
    let cache = Cache::new();
    thread::scope(|scope| {
        let cache = &cache;
        let start = |number| {
            let work = move || {
                let done = Thread::new(board, seed, number, cache).run(max_steps);
                board.threads[number].tid.store(0, Relaxed);
                board.check(&format!("thread {number}"), done);
            };
            scope.spawn(work)
        };
        let threads: Vec<_> = (0..setting.threads).map(start).collect();
        if max_steps == u64::MAX {
            scope.spawn(move || lack_descriptors(board, seed));
        }
        for (number, thread) in threads.into_iter().enumerate() {
            if thread.join().is_err() {
                let panic = mismatch("a panic", "none", "one");
                board.check(&format!("thread {number}"), panic);
            }
        }
        if max_steps == u64::MAX {
            board.stop.store(true, Release);
        }
    });
}

/// Leaves no descriptor most of the time, for longer than a reading serves.
fn lack_descriptors(board: &Board, seed: u64) {
    let mut random = Rng::with_seed(seed);
    while !board.stop.load(Acquire) {
        let time = Duration::from_millis(random.u64(20..400));
        run_out_of_descriptors(random.bool(), time);
        thread::sleep(Duration::from_millis(random.u64(1..100)));
    }
}

struct Thread<'a> {
    number: usize,
    tools: Tools<'a>,
    random: Rng,
    ready: Ready<'a>,
}

impl<'a> Thread<'a> {
    fn new(board: &'a Board, seed: u64, number: usize, cache: &'a Cache) -> Self {
        let seed = seed ^ (number as u64) << 32;
        Self {
            number,
            tools: Tools::new(board, seed),
            random: Rng::with_seed(seed),
            ready: Ready::new(number, cache),
        }
    }

    fn run(&mut self, max_steps: u64) -> Checked {
        let board = self.tools.board;
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        board.threads[self.number].begun.store(0, Relaxed);
        board.threads[self.number]
            .tid
            .store(tid.cast_unsigned(), Relaxed);
        let mut steps = 0;
        while steps < max_steps && !board.stop.load(Acquire) {
            let verb = self.verb();
            board.begin(self.number, &verb);
            board.verbs[verb.index()].fetch_add(1, Relaxed);
            self.tools.begin();
            self.perform(verb)?;
            steps += 1;
        }
        self.ready.check()
    }

    fn verb(&mut self) -> Verb {
        match self.random.usize(..8) {
            0..3 => Verb::Admit(self.random.usize(1..=3), self.bytes()),
            3 => Verb::Populate(Populate {
                access: Access::Write,
                strategy: Strategy::Auto,
                threads: self.random.usize(1..=2),
                chunk_pages: 0,
                in_background: false,
                cancel: false,
            }),
            4 => Verb::Lock(LockMode::Now),
            _ => {
                let len = self.random.usize(1..=128 << 10);
                let key = self.random.usize(..CACHE_KEYS);
                Verb::Cache(CacheUse::Insert(Priority::Normal), key, len)
            }
        }
    }

    /// Two threads together often take more than the limit.
    fn bytes(&mut self) -> usize {
        self.random.usize(1..=LIMIT_BYTES / 4 * 3)
    }

    fn perform(&mut self, verb: Verb) -> Checked {
        let bytes = self.bytes();
        let tools = &mut self.tools;
        match verb {
            Verb::Admit(threads, bytes) => admit_at_once(tools, threads, bytes),
            Verb::Populate(how) => {
                let mapping = Mapping::anonymous(bytes).map();
                let Some(mapping) = tools.expect(mapping, &[])? else {
                    return Ok(());
                };
                let options = PopulateOptions::new(how.access).threads(how.threads);
                let populated = mapping.populate_with(.., &options);
                tools.expect(populated, &["no_memory"]).map(drop)
            }
            Verb::Lock(mode) => {
                let len = bytes.next_multiple_of(page_size());
                let allowed = [&*tools.if_lock_limited("lock_limit"), &["no_memory"]].concat();
                let mapping = Mapping::anonymous(len).map_locked(mode);
                tools.expect(mapping, &allowed).map(drop)
            }
            Verb::Cache(what, key, len) => self.ready.use_cache(tools, what, key, len),
            _ => Ok(()),
        }
    }
}
