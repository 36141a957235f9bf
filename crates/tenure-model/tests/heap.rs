//! Each model of the heap, run through all its interleavings.

#[test]
fn address_outside_is_not_owned_during_start() {
    tenure_model::address_outside_is_not_owned_during_start();
}
