//! Calls the C interface with any addresses, lengths and flags: no call crashes, every
//! result is documented, and each call changes only the bytes that it may change.
//!
//! Calls that lose contents get memory of the [`World`], or addresses where nothing can be
//! mapped; only the other calls get the fuzzer's own memory.

mod call;
mod documented;
mod world;

use std::cell::RefCell;

use call::Call;
use world::World;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes the calls of one input: eight bytes are one call.
pub fn c_interface(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(World::new);
        let (calls, _) = data.as_chunks();
        for bytes in calls.iter().take(64) {
            let call = Call::new(*bytes);
            call.make(world);
            world.check(&call);
        }
        call::unmap_all(world);
        world.map();
    });
}
