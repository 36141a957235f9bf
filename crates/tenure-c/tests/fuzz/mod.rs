//! The C interface, called with any addresses, lengths and flags: no call crashes,
//! every answer is documented, and no byte changes that the call had no right to.
//!
//! What loses contents is given memory of the world's, or addresses where nothing
//! can be: the fuzzer's own memory is named to the other calls only.

mod call;
mod documented;
mod world;

use std::cell::RefCell;

use call::Call;
use world::World;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The calls of one input: eight bytes are one.
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
