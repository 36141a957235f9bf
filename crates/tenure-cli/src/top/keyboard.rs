//! Reads keys.
//!
//! crossterm's reader waits for the rest of a sequence that has begun, whatever else there is
//! to do, and reads a terminal that is gone without an end. This one reads only where the
//! kernel says that there is something.

mod decoder;

use std::{io, time::Duration};

use anyhow::Result;
use crossterm::event::KeyEvent;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
};

use self::decoder::Decoder;

/// The answer of a look at standard input.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// These keys, or none within the time.
    Keys(Vec<KeyEvent>),
    /// The terminal is gone.
    Gone,
}

/// The keys of standard input, and the sequence that has begun.
#[derive(Debug, Default)]
pub struct Keyboard(Decoder);

impl Keyboard {
    /// Waits for keys, or a signal, at most so long.
    pub fn wait(&mut self, timeout: Duration) -> Result<Input> {
        let stdin = io::stdin();
        let mut files = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout)?;
        match poll(&mut files, Some(&timeout)) {
            Err(Errno::INTR) => return Ok(Input::Keys(Vec::new())),
            // No terminal sends half of a key and waits as long.
            Ok(0) => return Ok(Input::Keys(self.0.end().into_iter().collect())),
            polled => polled?,
        };
        let events = files[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Input::Gone);
        }
        let mut bytes = [0; 256];
        Ok(match read(&stdin, &mut bytes) {
            Ok(0) | Err(Errno::IO) => Input::Gone,
            Err(Errno::INTR | Errno::AGAIN) => Input::Keys(Vec::new()),
            len => Input::Keys(self.0.decode(&bytes[..len?])),
        })
    }
}
