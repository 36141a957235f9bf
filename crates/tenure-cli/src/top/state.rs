//! The state of the view, and how keys change it.

use std::{cmp::Reverse, collections::VecDeque};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::reading::{Process, Reading};

/// How many readings the line of stalls has at most: more than a terminal is wide.
const MAX_HISTORY: usize = 1024;

/// A column by which the rows can be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    #[default]
    Resident,
    LazilyFree,
    Volatile,
    Locked,
    Pending,
    Name,
}

impl Column {
    fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'r' => Self::Resident,
            'l' => Self::LazilyFree,
            'v' => Self::Volatile,
            'k' => Self::Locked,
            'p' => Self::Pending,
            'n' => Self::Name,
            _ => return None,
        })
    }

    fn figure(self, process: &Process) -> Option<u64> {
        match self {
            Self::Resident => Some(process.resident),
            Self::LazilyFree => process.lazily_free,
            Self::Volatile => process.volatile,
            Self::Locked => Some(process.locked),
            Self::Pending => process.pending,
            Self::Name => None,
        }
    }
}

/// The consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Quit,
    Draw,
    Nothing,
}

#[derive(Debug, Default)]
pub struct State {
    pub reading: Reading,
    /// Whether there has been a reading yet.
    pub has_reading: bool,
    /// The share of the time in which tasks have waited for memory, in thousandths, oldest
    /// first.
    pub stalls: VecDeque<u64>,
    pub sorted_by: Column,
    /// Whether the order is turned round: smallest first, or the last name.
    pub is_reversed: bool,
    /// The row that is marked, and the first that is shown.
    pub table: TableState,
    /// How many rows the table shows; drawing sets it.
    pub page_rows: u16,
}

impl State {
    /// Shows another reading. The marked row stays where it is.
    pub fn update(&mut self, reading: Reading) {
        let stalled = reading.stalled.unwrap_or(0.0).clamp(0.0, 1.0);
        self.stalls.push_back((stalled * 1000.0).round() as u64);
        if self.stalls.len() > MAX_HISTORY {
            self.stalls.pop_front();
        }
        self.reading = reading;
        self.has_reading = true;
        self.sort();
    }

    pub fn press(&mut self, key: KeyEvent) -> Step {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = isize::try_from(self.page_rows.max(1)).unwrap_or(1);
        match key.code {
            KeyCode::Char('c') if is_control => return Step::Quit,
            KeyCode::Char(_) if is_control => return Step::Nothing,
            KeyCode::Char('q') | KeyCode::Esc => return Step::Quit,
            KeyCode::Down => self.scroll(1),
            KeyCode::Up => self.scroll(-1),
            KeyCode::PageDown => self.scroll(page),
            KeyCode::PageUp => self.scroll(-page),
            KeyCode::Home => self.scroll(isize::MIN),
            KeyCode::End => self.scroll(isize::MAX),
            KeyCode::Char(key) => match Column::of_key(key) {
                Some(column) => self.sort_by(column),
                None => return Step::Nothing,
            },
            _ => return Step::Nothing,
        }
        Step::Draw
    }

    fn sort_by(&mut self, column: Column) {
        self.is_reversed = column == self.sorted_by && !self.is_reversed;
        self.sorted_by = column;
        self.sort();
    }

    fn sort(&mut self) {
        let column = self.sorted_by;
        let processes = &mut self.reading.processes;
        match column {
            Column::Name => {
                processes.sort_by(|one, other| (&one.name, one.pid).cmp(&(&other.name, other.pid)))
            }
            // Unknown figures come last.
            _ => processes.sort_by_key(|process| (Reverse(column.figure(process)), process.pid)),
        }
        if self.is_reversed {
            processes.reverse();
        }
        self.scroll(0);
    }

    /// Moves the mark by so many rows, as far as there are.
    fn scroll(&mut self, rows: isize) {
        let Some(last) = self.reading.processes.len().checked_sub(1) else {
            return self.table.select(None);
        };
        let at = self.table.selected().unwrap_or(0);
        self.table
            .select(Some(at.saturating_add_signed(rows).min(last)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let process = |pid, name: &str, resident, volatile| Process {
            pid,
            name: name.to_owned(),
            resident,
            volatile,
            ..Process::default()
        };
        let mut state = State::default();
        state.update(Reading {
            processes: vec![
                process(1, "b", 10, None),
                process(2, "c", 30, Some(0)),
                process(3, "a", 20, Some(5)),
            ],
            stalled: Some(0.25),
            ..Reading::default()
        });
        state
    }

    fn press(state: &mut State, code: KeyCode) -> Step {
        state.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn pids(state: &State) -> Vec<u32> {
        let processes = state.reading.processes.iter();
        processes.map(|process| process.pid).collect()
    }

    #[test]
    fn keys_sort_and_turn_the_order_round() {
        let mut state = state();
        assert_eq!(pids(&state), [2, 3, 1]);
        for (key, order) in [
            ('r', [1, 3, 2]),
            ('r', [2, 3, 1]),
            ('v', [3, 2, 1]),
            ('n', [3, 1, 2]),
            ('n', [2, 1, 3]),
            ('k', [1, 2, 3]),
        ] {
            assert_eq!(press(&mut state, KeyCode::Char(key)), Step::Draw);
            assert_eq!(pids(&state), order, "{key}");
        }
        assert_eq!(press(&mut state, KeyCode::Char('x')), Step::Nothing);
    }

    #[test]
    fn order_holds_for_the_next_reading() {
        let mut state = state();
        press(&mut state, KeyCode::Char('n'));
        let mut reading = std::mem::take(&mut state.reading);
        reading.processes.reverse();
        state.update(reading);
        assert_eq!(pids(&state), [3, 1, 2]);
        assert_eq!(state.stalls, [250, 250]);
    }

    #[test]
    fn mark_stays_within_the_rows() {
        let mut state = state();
        state.page_rows = 2;
        for (key, at) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 2),
            (KeyCode::Home, 0),
            (KeyCode::End, 2),
            (KeyCode::PageUp, 0),
            (KeyCode::End, 2),
        ] {
            press(&mut state, key);
            assert_eq!(state.table.selected(), Some(at), "{key}");
        }
        state.update(Reading::default());
        assert_eq!(state.table.selected(), None);
        press(&mut state, KeyCode::Down);
        assert_eq!(state.table.selected(), None);
    }

    #[test]
    fn q_escape_and_ctrl_c_quit() {
        let mut state = state();
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut state, code), Step::Quit);
        }
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        assert_eq!(state.press(control('c')), Step::Quit);
        assert_eq!(state.press(control('r')), Step::Nothing);
        assert_eq!(press(&mut state, KeyCode::Char('c')), Step::Nothing);
    }

    #[test]
    fn history_of_stalls_is_bounded() {
        let mut state = State::default();
        for _ in 0..MAX_HISTORY + 3 {
            state.update(Reading::default());
        }
        assert_eq!(state.stalls.len(), MAX_HISTORY);
    }
}
