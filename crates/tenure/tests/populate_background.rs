//! populate in the background: the handle that waits, stops and is inherited by a child.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::missing::Missing;
use common::*;
use libtest_mimic::Completion;
use tenure::{Access, Error, Mapping, page_size, populate::PopulateOptions};

tests!(
    background_populate_is_complete_after_wait,
    background_populate_of_range_with_hole_fails_immediately,
    background_populate_failure_is_returned_by_wait,
    dropped_handle_stops_background_populate,
    dropped_handle_does_not_wait_for_stalled_page,
    background_handle_in_forked_child_is_finished;
    children:
    drop_handle_while_page_stalls,
    use_background_handles_in_forked_child,
);

const MIB: usize = 1 << 20;

fn background_populate_is_complete_after_wait() {
    let memory = Arc::new(anonymous(256 * MIB / page_size()));
    let arriving = memory
        .populate_in_background(.., &PopulateOptions::new(Access::Write))
        .unwrap();
    // The memory is usable in the meantime.
    assert_eq!(memory.as_slice()[memory.len() - 1], 0);
    arriving.wait().unwrap();
    assert_eq!(count_present(memory.range()), memory.range().pages());
    assert_eq!(Arc::strong_count(&memory), 1);
}

fn background_populate_of_range_with_hole_fails_immediately() {
    let memory = Arc::new(anonymous(64));
    raw_unmap(pages(memory.range(), 40, 1));
    let error = memory
        .populate_in_background(.., &PopulateOptions::new(Access::Write))
        .unwrap_err();
    assert!(matches!(error, Error::Hole { .. }), "{error}");
}

fn background_populate_failure_is_returned_by_wait() {
    let file = file(2 * page_size());
    let memory = Arc::new(
        unsafe { Mapping::file(&file) }
            .len(8 * page_size())
            .map()
            .unwrap(),
    );
    let arriving = memory
        .populate_in_background(.., &PopulateOptions::new(Access::Read))
        .unwrap();
    while !arriving.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = arriving.wait().unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
}

fn dropped_handle_stops_background_populate() {
    let memory = Arc::new(anonymous(1024 * MIB / page_size()));
    let options = PopulateOptions::new(Access::Write)
        .threads(1)
        .chunk_bytes(64 << 10);
    let arriving = memory.populate_in_background(.., &options).unwrap();
    drop(arriving);
    let after = count_present(memory.range());
    assert!(after < memory.range().pages());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(count_present(memory.range()), after);
}

fn dropped_handle_does_not_wait_for_stalled_page() -> Completion {
    if let Err(skipped) = Missing::can_stall_populate() {
        return skipped;
    }
    in_child_within(Duration::from_secs(30), "drop_handle_while_page_stalls");
    Completion::Completed
}

fn drop_handle_while_page_stalls() {
    let memory = Arc::new(anonymous(64));
    let missing = Missing::register(memory.range()).unwrap();
    let options = PopulateOptions::new(Access::Write).chunk_bytes(1);
    let arriving = memory.populate_in_background(.., &options).unwrap();
    let fault = missing.next_within(Duration::from_secs(20)).unwrap();
    drop(arriving);
    assert_eq!(count_present(memory.range()), 0);
    missing.answer(&fault);
    // The thread keeps the memory mapped until it ends.
    while Arc::strong_count(&memory) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(count_present(memory.range()), 1);
}

fn background_handle_in_forked_child_is_finished() {
    let limit = Duration::from_secs(30);
    in_child_within(limit, "use_background_handles_in_forked_child");
}

fn use_background_handles_in_forked_child() {
    let memory = Arc::new(anonymous(64));
    // The callback for the end of the range keeps the thread running.
    let (entered, is_entered) = std::sync::mpsc::channel();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let options = || {
        let (entered, gate) = (entered.clone(), Arc::clone(&gate));
        PopulateOptions::new(Access::Write).progress(move |_| {
            entered.send(()).unwrap();
            drop(gate.lock());
        })
    };
    let start = |options| Some(memory.populate_in_background(.., &options).unwrap());
    let mut running = [start(options()), start(options())];
    is_entered.recv().unwrap();
    is_entered.recv().unwrap();
    let mut finished = start(PopulateOptions::new(Access::Write));
    while !finished.as_ref().unwrap().is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = fork(|| {
        let [waited, dropped] = running.each_mut().map(|handle| handle.take().unwrap());
        assert!(waited.is_finished() && dropped.is_finished());
        let error = waited.wait().unwrap_err();
        assert_eq!(error.errno(), libc::ESRCH, "{error}");
        drop(dropped);
        finished.take().unwrap().wait().unwrap();
        // The child's own thread is not taken for one of the parent's.
        start(PopulateOptions::new(Access::Read))
            .unwrap()
            .wait()
            .unwrap();
        0
    });
    assert_eq!(status, 0);
    assert!(running.iter().flatten().all(|handle| !handle.is_finished()));
    drop(closed);
    for handle in running.into_iter().chain([finished]).flatten() {
        handle.wait().unwrap();
    }
}
