//! The terminal as a screen.

use std::io;

use anyhow::{Context as _, Result};
use crossterm::{execute, terminal::EnterAlternateScreen};
use ratatui::{
    DefaultTerminal, TerminalOptions, Viewport,
    layout::{Rect, Size},
};

/// The largest part that is drawn on, in columns and rows. A terminal may claim any size, and
/// each place takes memory.
const MAX_SIZE: (u16, u16) = (1024, 512);

/// Prepares the terminal; a panic restores it.
pub fn prepare() -> Result<DefaultTerminal> {
    let (width, height) = crossterm::terminal::size().context("asking for its size")?;
    let viewport = Viewport::Fixed(area(Size::new(width, height)));
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Ok(terminal)
}

/// Draws on the whole terminal from now on. Returns whether its size has changed.
pub fn follow_size(terminal: &mut DefaultTerminal) -> Result<bool> {
    let area = area(terminal.size()?);
    let has_changed = terminal.get_frame().area() != area;
    if has_changed {
        terminal.resize(area)?;
    }
    Ok(has_changed)
}

fn area(size: Size) -> Rect {
    let (width, height) = MAX_SIZE;
    Rect::new(0, 0, size.width.min(width), size.height.min(height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env,
        fs::{File, OpenOptions},
        io::Read as _,
        os::fd::OwnedFd,
        process::{Command, Stdio},
    };

    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::tcgetattr,
    };

    const PANICS: &str = "TENURE_TEST_PANICS_ON_A_SCREEN";

    /// The test is also the child, on a terminal of the test's.
    #[test]
    fn panic_restores_the_terminal() {
        if env::var_os(PANICS).is_some() {
            let _terminal = prepare().unwrap();
            panic!("as the test wants it");
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let path = path.to_str().unwrap();
        let theirs = OpenOptions::new().read(true).write(true).open(path);
        let theirs = theirs.unwrap();
        let end = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
        let before = tcgetattr(&theirs).unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg(
                concat!(module_path!(), "::panic_restores_the_terminal").replacen(
                    "tenure_cli::",
                    "",
                    1,
                ),
            )
            .env(PANICS, "1")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (mut shown, mut part) = (String::new(), [0; 4096]);
        let mut ours = File::from(ours);
        while !shown.contains("as the test wants it") {
            let len = ours.read(&mut part).unwrap();
            shown += &String::from_utf8_lossy(&part[..len]);
        }
        // Nothing is left to read while it ends: the harness writes little.
        assert!(!child.wait().unwrap().success());
        let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{shown:?}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"));
        assert!(at("\x1b[?1049l") < at("as the test wants it"), "{shown:?}");
        let after = tcgetattr(&theirs).unwrap();
        assert_eq!(after.local_modes, before.local_modes);
        assert_eq!(after.input_modes, before.input_modes);
        assert_eq!(after.output_modes, before.output_modes);
    }

    #[test]
    fn area_of_a_huge_terminal_is_bounded() {
        let (width, height) = MAX_SIZE;
        let huge = area(Size::new(u16::MAX, u16::MAX));
        assert_eq!((huge.width, huge.height), (width, height));
        assert_eq!(area(Size::new(80, 24)), Rect::new(0, 0, 80, 24));
    }
}
