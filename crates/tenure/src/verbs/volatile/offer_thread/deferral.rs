//! Deferring the offers of arenas that ask for it, while memory is ample.
//!
//! An offer and its revocation cost a hit about a microsecond, more than some caches save by
//! it. While nothing needs the memory, nothing is gained by them.

use crate::ground::sys::affinity;
use crate::observation::headroom::{LEDGER, Watermark, refresh};
use crate::verbs::volatile::arenas::{ArenaMemory, LiveArenas};

/// How many times the offer delay a deferred offer waits.
const FACTOR: u32 = 100;

/// The memory that must be left above the watermark for each CPU: more than one takes between
/// two readings, a tenth of a second. (The kernel fills 1.6 to 3.3 GB a second.)
const AMPLE_BYTES_PER_CPU: usize = 256 << 20;

/// By what the offer delay is multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferral {
    factor: u32,
}

impl Deferral {
    /// Reads the headroom if an arena defers its offers, and the last reading is old.
    pub(super) fn now(live: &LiveArenas) -> Self {
        let is_asked_for = live.iter().any(|memory| memory.defers_offers());
        Self {
            factor: if is_asked_for && is_ample() {
                FACTOR
            } else {
                1
            },
        }
    }

    /// Returns the factor for an arena.
    pub(super) fn of(self, memory: &ArenaMemory) -> u32 {
        match memory.defers_offers() {
            true => self.factor,
            false => 1,
        }
    }
}

/// Returns whether memory is ample; `false` where the limits cannot be read.
fn is_ample() -> bool {
    if LEDGER.is_due() && refresh().is_err() {
        return false;
    }
    is_enough(
        LEDGER.surplus(Watermark::High),
        affinity::process_cpu_count(),
    )
}

fn is_enough(surplus: isize, cpus: usize) -> bool {
    usize::try_from(surplus).is_ok_and(|left| left / cpus >= AMPLE_BYTES_PER_CPU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::volatile::VolatileArena;

    #[test]
    fn deferral_multiplies_the_delay_of_arenas_that_ask_for_it() {
        let plain = VolatileArena::new(1 << 20).unwrap();
        let deferring = VolatileArena::new(1 << 20).unwrap();
        deferring.defer_offers();
        let live = LiveArenas::now();
        let factors = |deferral: Deferral| {
            let of = |arena: &VolatileArena| {
                let mut live = live.iter();
                live.find(|memory| memory.range == arena.range())
                    .map(|memory| deferral.of(memory))
            };
            [of(&plain), of(&deferring)]
        };
        assert_eq!(
            factors(Deferral { factor: FACTOR }),
            [Some(1), Some(FACTOR)]
        );
        assert_eq!(factors(Deferral { factor: 1 }), [Some(1); 2]);
    }

    #[test]
    fn memory_is_ample_with_so_much_for_each_cpu() {
        let needed = AMPLE_BYTES_PER_CPU as isize;
        assert!(is_enough(2 * needed, 2));
        assert!(!is_enough(2 * needed - 1, 2));
        assert!(!is_enough(-1, 1));
    }
}
