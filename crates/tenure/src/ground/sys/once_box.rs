//! A lazily initialized value for which no thread ever waits.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is initialized once, and then lives as long as the process.
///
/// Unlike with `OnceLock`, no thread waits while another one initializes the
/// value: a child forked in that moment would wait for ever. Two threads that
/// race both create a value; the first one stored wins, and the other is
/// dropped.
pub(crate) struct OnceBox<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync> OnceBox<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value if it is initialized.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or as in `get_or_init`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &'static T {
        let mut value = self.0.load(Ordering::Acquire);
        if value.is_null() {
            let mine = Box::into_raw(Box::new(init()));
            let (empty, success) = (ptr::null_mut(), Ordering::AcqRel);
            value = match self
                .0
                .compare_exchange(empty, mine, success, Ordering::Acquire)
            {
                Ok(_) => mine,
                Err(winner) => {
                    // SAFETY: `into_raw` made it above, and the exchange
                    // failed, so no other thread has seen it.
                    drop(unsafe { Box::from_raw(mine) });
                    winner
                }
            };
        }
        // SAFETY: not null, so it comes from `into_raw` and was stored by a
        // successful exchange; a stored value is never changed or freed.
        unsafe { &*value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn get_or_init_by_racing_threads_returns_one_value() {
        for _ in 0..100 {
            let once = OnceBox::new();
            let together = Barrier::new(4);
            let ask = &|number: usize| {
                together.wait();
                ptr::from_ref(once.get_or_init(|| vec![number])).addr()
            };
            thread::scope(|scope| {
                let askers: Vec<_> = (0..4).map(|at| scope.spawn(move || ask(at))).collect();
                let seen: Vec<_> = askers.into_iter().map(|a| a.join().unwrap()).collect();
                assert!(seen.iter().all(|&at| at == seen[0]), "{seen:?}");
            });
            assert!(once.get_or_init(|| unreachable!())[0] < 4);
        }
    }
}
