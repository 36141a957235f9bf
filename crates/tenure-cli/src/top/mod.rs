//! `tenure top`: processes by what their memory is, full-screen.

mod keyboard;
mod reading;
mod screen;
mod state;
mod view;

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, SyncSender, TryRecvError},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ratatui::DefaultTerminal;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use self::{
    keyboard::{Input, Keyboard},
    reading::{Reading, Subject},
    state::{State, Step},
};
use crate::cli::TopArguments;

/// How long the command waits for a key before it looks for a reading or a signal.
const KEY_TIMEOUT: Duration = Duration::from_millis(200);

/// Shows the processes until a key or a signal ends that.
pub fn run(arguments: &TopArguments) -> Result<()> {
    if !io::stdout().is_terminal() {
        bail!("standard output is not a terminal: tenure stat prints tables, JSON and OpenMetrics");
    }
    if !io::stdin().is_terminal() {
        bail!("standard input is not a terminal: no key would arrive");
    }
    let subject = Subject::of(arguments)?;
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        // The second one ends a command that does not come to an end by itself.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_over))
            .context("waiting for signals")?;
        flag::register(signal, Arc::clone(&is_over)).context("waiting for signals")?;
    }
    let (sender, readings) = mpsc::sync_channel(0);
    let interval = arguments.interval;
    let read = move || send_readings(&subject, interval, &sender);
    let reader = thread::Builder::new().name("reader".into()).spawn(read);
    reader.context("starting a thread")?;

    let mut terminal = match screen::prepare() {
        Ok(terminal) => terminal,
        Err(error) => {
            // It may be prepared in part.
            let _ = ratatui::try_restore();
            return Err(error).context("preparing the terminal");
        }
    };
    let ended = show(&mut terminal, &readings, &is_over);
    if matches!(Keyboard::default().wait(Duration::ZERO), Ok(Input::Gone)) {
        // Nobody would see an error, and dropping it would print one, which panics.
        std::mem::forget(terminal);
        return Ok(());
    }
    drop(terminal);
    let restored = ratatui::try_restore().context("restoring the terminal");
    if is_over.load(Ordering::Relaxed) {
        return Ok(());
    }
    ended.and(restored)
}

/// Reads the figures repeatedly, until nobody receives them. Reading takes the kernel time
/// for each page, so keys do not wait for it.
fn send_readings(subject: &Subject, interval: Duration, readings: &SyncSender<Reading>) {
    while readings.send(subject.read()).is_ok() {
        thread::sleep(interval);
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    readings: &Receiver<Reading>,
    is_over: &AtomicBool,
) -> Result<()> {
    let mut state = State::default();
    let mut keyboard = Keyboard::default();
    let mut is_current = false;
    while !is_over.load(Ordering::Relaxed) {
        match readings.try_recv() {
            Ok(reading) => {
                state.update(reading);
                is_current = false;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread that reads the figures has ended"),
        }
        if !is_current {
            terminal.draw(|frame| view::draw(frame, &mut state))?;
            is_current = true;
        }
        match keyboard.wait(KEY_TIMEOUT)? {
            Input::Gone => break,
            Input::Keys(keys) => {
                for key in keys {
                    match state.press(key) {
                        Step::Quit => return Ok(()),
                        Step::Draw => is_current = false,
                        Step::Nothing => {}
                    }
                }
            }
        }
        is_current &= !screen::follow_size(terminal)?;
    }
    Ok(())
}
