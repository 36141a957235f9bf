//! One large block: freed, or kept until the process is killed.

use std::{path::Path, thread, time::Duration};

use anyhow::Result;

use super::{
    super::{
        super::{
            clock::{Clock, MonotonicClock},
            touch,
            trace::Trace,
        },
        job::Done,
    },
    Parent,
    block::Block,
};

/// When to look what is left of a block that was freed.
const LOOK_AFTER: Duration = Duration::from_millis(200);

/// Fills a block and frees it.
pub fn free(len: usize, parent: &mut Parent) -> Result<Done> {
    let block = filled(len)?;
    parent.wait()?;
    let clock = MonotonicClock::start();
    drop(block);
    let seconds = clock.now().as_secs_f64();
    thread::sleep(LOOK_AFTER);
    Ok(Done {
        seconds,
        left_bytes: super::held_bytes()?,
        ..Done::default()
    })
}

/// Fills a block and has it until the parent says otherwise.
pub fn keep(len: usize, trace: &Path, parent: &mut Parent) -> Result<Done> {
    let _traced = Trace::at(trace)?.map()?;
    let _block = filled(len)?;
    parent.wait()?;
    Ok(Done::default())
}

/// Writes to each page of a block of zeros.
fn filled(len: usize) -> Result<Block> {
    let mut block = Block::zeroed(len)?;
    touch::write_each_page(block.bytes_mut(), |_| 1);
    Ok(block)
}
