use super::*;
use crate::machine::memory::{Owner, Pages};

#[test]
fn all_chunks_are_freed_whatever_the_number_of_threads() {
    for count in [1, 3] {
        let workers = Workers::start(count).unwrap();
        let page = tenure::page_size();
        let mut memory = Memory::anonymous(Owner::Raw, 2 * CHUNK + page, Pages::Base).unwrap();
        let bytes = memory.bytes_mut().unwrap();
        let written = [0, CHUNK - page, CHUNK, 2 * CHUNK];
        written.iter().for_each(|&offset| bytes[offset] = 1);
        workers.free(&mut memory).unwrap();
        let bytes = memory.bytes();
        assert!(written.iter().all(|&offset| bytes[offset] == 0));
    }
}
