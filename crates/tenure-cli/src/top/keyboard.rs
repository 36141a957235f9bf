//! Waits for keys.
//!
//! crossterm reads a terminal that is gone again and again, without an end: so it is asked
//! only where the kernel says that there is something to read.

use std::{io, time::Duration};

use anyhow::Result;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// The state of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Ready,
    None,
    /// The terminal is gone.
    Gone,
}

/// Waits for keys, or a signal, at most so long.
pub fn wait(timeout: Duration) -> Result<Input> {
    let stdin = io::stdin();
    let mut files = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout)?;
    match poll(&mut files, Some(&timeout)) {
        Err(Errno::INTR) => return Ok(Input::None),
        polled => polled?,
    };
    let events = files[0].revents();
    Ok(
        if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            Input::Gone
        } else if events.contains(PollFlags::IN) {
            Input::Ready
        } else {
            Input::None
        },
    )
}
