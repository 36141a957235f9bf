#![no_main]

#[path = "../../crates/tenure-c/tests/fuzz/mod.rs"]
mod fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::c_interface(data));
