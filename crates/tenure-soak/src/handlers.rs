//! Fork handlers of the program (`pthread_atfork(3)`), registered before tenure's and after
//! them: they use memory of their own in all three phases of a fork.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use fastrand::Rng;
use tenure::VolatileArena;
use tenure::volatile::{Priority, VolatileOptions};

use super::board::Board;
use super::model::Checked;
use super::slot::Slot;
use super::step::{Count, End, Kind};
use super::verbs::Tools;

const SLOTS: usize = 6;

/// Kinds, and pages at most. The large one is freed by workers.
const KINDS: [(Kind, usize); 4] = [
    (Kind::Plain, 32),
    (Kind::Plain, 1536),
    (Kind::Buffer, 64),
    (Kind::InArena, 16),
];

/// The phase of a fork, and whether the handler was registered before tenure's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    LatePrepare,
    EarlyPrepare,
    EarlyParent,
    LateParent,
    EarlyChild,
    LateChild,
}

struct Handlers {
    tools: Tools<'static>,
    random: Rng,
    arena: VolatileArena,
    slots: Vec<Slot>,
}

/// Whether the handlers of the present fork do anything.
pub static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// One thread forks at a time, and nothing else locks it while threads run.
static HANDLERS: Mutex<Option<Handlers>> = Mutex::new(None);

/// Runs before tenure's own entry in `.init_array`, which has no number.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_TENURE: extern "C" fn() = register_early;

extern "C" fn register_early() {
    extern "C" fn prepare() {
        run(Phase::EarlyPrepare);
    }
    extern "C" fn parent() {
        run(Phase::EarlyParent);
    }
    extern "C" fn child() {
        run(Phase::EarlyChild);
    }
    register(prepare, parent, child);
}

/// Registers the handlers behind tenure's.
pub fn register_late() {
    extern "C" fn prepare() {
        run(Phase::LatePrepare);
    }
    extern "C" fn parent() {
        run(Phase::LateParent);
    }
    extern "C" fn child() {
        run(Phase::LateChild);
    }
    register(prepare, parent, child);
}

fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions stay loaded, and do what tenure allows in a fork handler.
    let answer = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    assert_eq!(answer, 0, "pthread_atfork");
}

/// Gives the handlers an arena to use, or drops what they hold.
pub fn set_up(board: &'static Board, seed: u64, arena: Option<&VolatileArena>) {
    let handlers = arena.map(|arena| Handlers {
        tools: Tools::new(board, seed),
        random: Rng::with_seed(seed),
        arena: arena.clone(),
        slots: Vec::new(),
    });
    *HANDLERS.lock().unwrap_or_else(|error| error.into_inner()) = handlers;
}

fn run(phase: Phase) {
    if !IS_ACTIVE.load(Relaxed) {
        return;
    }
    let Ok(mut handlers) = HANDLERS.try_lock() else {
        return;
    };
    if let Some(handlers) = &mut *handlers {
        let done = handlers.work(phase);
        let board = handlers.tools.board;
        board.add(Count::HandlerCalls, 1);
        board.check(&format!("a fork handler in {phase:?}"), done);
    }
}

impl Handlers {
    fn work(&mut self, phase: Phase) -> Checked {
        // A shortage that overlaps the fork explains what happens in the child.
        if !matches!(phase, Phase::EarlyChild | Phase::LateChild) {
            self.tools.begin();
        }
        if phase == Phase::EarlyChild {
            if self.tools.has_lacked_descriptors() {
                // As in the child itself.
                self.slots.retain(|slot| !slot.is_volatile());
            }
            // tenure's own handler has not run, so that a purged page would read as zeros
            // until its range is nonvolatile. An error leaves it volatile.
            for slot in &mut self.slots {
                self.tools.unmark(slot, slot.all())?;
            }
        } else {
            self.check_all()?;
        }
        for _ in 0..3 {
            let index = self.random.usize(..SLOTS);
            if index >= self.slots.len() {
                self.add()?;
                continue;
            }
            let options = self.options();
            let slot = &mut self.slots[index];
            let all = slot.all();
            if phase == Phase::EarlyChild && slot.is_volatile() {
                continue;
            }
            match self.random.usize(..5) {
                0 => {
                    let slot = self.slots.swap_remove(index);
                    self.tools.end(slot, End::Drop)?;
                }
                1 => self.tools.mark(slot, all, options)?,
                2 => self.tools.unmark(slot, all)?,
                3 => self.tools.purge(slot, all)?,
                _ => self.tools.page_out(slot, all),
            }
        }
        Ok(())
    }

    fn options(&mut self) -> VolatileOptions {
        let priority = Priority::ALL[self.random.usize(..Priority::ALL.len())];
        let options = VolatileOptions::new().priority(priority);
        match self.random.bool() {
            true => options.offer_now(),
            false => options,
        }
    }

    /// Maps, writes and marks memory.
    fn add(&mut self) -> Checked {
        let (kind, max_pages) = KINDS[self.random.usize(..KINDS.len())];
        let count = self.random.usize(1..=max_pages);
        let slot = Slot::new(kind, count, &self.arena, &mut self.random);
        if let Some(mut slot) = self.tools.expect(slot, &["arena_full"])? {
            slot.write(slot.all(), &mut self.random)?;
            let options = self.options();
            self.tools.mark(&mut slot, (0, count), options)?;
            self.slots.push(slot);
        }
        Ok(())
    }

    fn check_all(&mut self) -> Checked {
        let board = self.tools.board;
        let mut slots = self.slots.iter_mut();
        slots.try_for_each(|slot| slot.check_all(board))
    }
}

/// Checks the handlers' memory in a child, where all handlers have run.
pub fn check_in_child() -> Checked {
    match HANDLERS.try_lock() {
        Ok(mut handlers) => handlers.as_mut().map_or(Ok(()), Handlers::check_all),
        Err(_) => Ok(()),
    }
}
