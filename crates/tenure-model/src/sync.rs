//! loom's atomics. loom treats a sequentially consistent access as one that only
//! acquires and releases, but implements sequentially consistent fences: with a fence on
//! either side, such accesses are ordered among themselves as in C11.

use loom::sync::atomic::{self, fence};

pub(crate) use loom::sync::atomic::Ordering;

fn fenced<T>(ordering: Ordering, access: impl FnOnce() -> T) -> T {
    if ordering != Ordering::SeqCst {
        return access();
    }
    fence(Ordering::SeqCst);
    let value = access();
    fence(Ordering::SeqCst);
    value
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                fenced(ordering, || self.0.load(ordering))
            }

            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                fenced(ordering, || self.0.store(value, ordering));
            }

            pub(crate) fn swap(&self, value: $value, ordering: Ordering) -> $value {
                fenced(ordering, || self.0.swap(value, ordering))
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                now: $value,
                next: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                fenced(success, || {
                    self.0.compare_exchange_weak(now, next, success, failure)
                })
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
