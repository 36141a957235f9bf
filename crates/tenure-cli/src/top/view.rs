//! The picture.

use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Row, Sparkline, Table},
};
use tenure::pressure::Level;

use super::{
    reading::Process,
    state::{Column, State},
};
use tenure_bench::text::{bytes_text, printable};

/// The height of the line of stalls.
const STALLS_HEIGHT: u16 = 2;
/// The top of the scale of stalls at least, in thousandths of the time: the level "some".
const MIN_SCALE: u64 = 50;
/// From this width on the table has more columns.
const WIDE: u16 = 120;
/// Process numbers have seven digits at most.
const PID_WIDTH: u16 = 7;
/// "1,023 MiB".
const FIGURE_WIDTH: u16 = 9;

const KEYS: &str = "sort: r l v k p n, again turns round   scroll: arrows   quit: q";

/// Draws the state.
pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [title, stalls, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(STALLS_HEIGHT),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(summary(state), title);
    draw_stalls(frame, state, stalls);
    draw_table(frame, state, table);
    frame.render_widget(Line::from(KEYS).style(Modifier::DIM), keys);
}

fn summary(state: &State) -> Line<'static> {
    if !state.has_reading {
        return Line::from("tenure top: reading");
    }
    let reading = &state.reading;
    let mut text = match reading.processes.len() {
        1 => "tenure top: 1 process".to_owned(),
        count => format!("tenure top: {count} processes"),
    };
    if reading.unreadable > 0 {
        text += &format!(", {} may not be read", reading.unreadable);
    }
    let level = Span::styled(
        format!("pressure {}", reading.level),
        match reading.level {
            Level::None => Style::new(),
            Level::Some | Level::Severe => Style::new().add_modifier(Modifier::REVERSED),
        },
    );
    let mut parts = vec![Span::from(text + "   "), level];
    if let Some(bytes) = reading.headroom_bytes {
        parts.push(Span::from(format!("   headroom {}", size(bytes))));
    }
    Line::from(parts)
}

fn draw_stalls(frame: &mut Frame<'_>, state: &State, area: Rect) {
    const LABEL_WIDTH: u16 = 16;
    let [label, line] =
        Layout::horizontal([Constraint::Length(LABEL_WIDTH), Constraint::Min(0)]).areas(area);
    let width = usize::from(line.width);
    let shown = state.stalls.iter().rev().take(width).copied();
    let mut shown: Vec<u64> = shown.collect();
    let scale = shown.iter().copied().fold(MIN_SCALE, u64::max);
    // The last reading is at the right end.
    shown.resize(width, 0);
    shown.reverse();
    let now = match state.reading.stalled {
        Some(share) => format!("stalled {:.1} %", share * 100.0),
        None => "stalled ?".to_owned(),
    };
    let top = format!("of {:.0} %", scale as f64 / 10.0);
    frame.render_widget(
        ratatui::widgets::Paragraph::new(vec![Line::from(now), Line::from(top)]),
        label,
    );
    frame.render_widget(Sparkline::default().data(&shown).max(scale), line);
}

fn draw_table(frame: &mut Frame<'_>, state: &mut State, area: Rect) {
    let is_wide = area.width >= WIDE;
    let mut columns = vec![
        ("RSS", Some(Column::Resident)),
        ("lazily free", Some(Column::LazilyFree)),
        ("volatile", Some(Column::Volatile)),
        ("locked", Some(Column::Locked)),
        ("pending", Some(Column::Pending)),
    ];
    if is_wide {
        columns.extend([("PSS", None), ("swapped", None), ("huge pages", None)]);
    }
    let marked = |text: &str, column: Option<Column>| {
        let style = match column == Some(state.sorted_by) {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        Span::styled(text.to_owned(), style)
    };
    let right = |span: Span<'static>| Cell::from(Line::from(span).alignment(Alignment::Right));
    let figures = columns
        .iter()
        .map(|&(text, column)| right(marked(text, column)));
    let header = [
        right(marked("PID", None)),
        Cell::from(marked("name", Some(Column::Name))),
    ];
    let header = Row::new(header.into_iter().chain(figures));
    let rows = state
        .reading
        .processes
        .iter()
        .map(|process| row(process, is_wide));
    let widths = [Constraint::Length(PID_WIDTH), Constraint::Min(10)]
        .into_iter()
        .chain(columns.iter().map(|(name, _)| {
            let width = u16::try_from(name.len()).unwrap_or(FIGURE_WIDTH);
            Constraint::Length(width.max(FIGURE_WIDTH))
        }));
    let table = Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Modifier::BOLD);
    state.page_rows = area.height.saturating_sub(1);
    frame.render_stateful_widget(table, area, &mut state.table);
}

fn row(process: &Process, is_wide: bool) -> Row<'static> {
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let known = |bytes: Option<u64>| right(bytes.map_or("?".to_owned(), size));
    let of_tenure = |bytes: Option<u64>| right(bytes.map_or("–".to_owned(), size));
    let mut cells = vec![
        right(process.pid.to_string()),
        Cell::from(printable(&process.name)),
        right(size(process.resident)),
        known(process.lazily_free),
        of_tenure(process.volatile),
        right(size(process.locked)),
        of_tenure(process.pending),
    ];
    if is_wide {
        let more = [process.proportional, process.swapped, process.huge_pages];
        cells.extend(more.map(known));
    }
    Row::new(cells)
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes => bytes_text(bytes as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::Reading;
    use super::*;
    use ratatui::{Terminal, backend::TestBackend};

    fn state() -> State {
        let process = |pid| Process {
            pid,
            name: format!("a\x1b[J{pid}"),
            resident: 3 << 29,
            lazily_free: Some(1 << 30),
            volatile: (pid % 2 == 0).then_some(64 << 20),
            locked: 0,
            pending: (pid % 2 == 0).then_some(0),
            proportional: None,
            swapped: Some(0),
            huge_pages: Some(2 << 20),
        };
        let mut state = State::default();
        state.update(Reading {
            processes: (1..=100).map(process).collect(),
            unreadable: 2,
            level: Level::Some,
            stalled: Some(0.07),
            headroom_bytes: Some(5 << 30),
        });
        state
    }

    /// Returns the lines of the picture.
    fn picture(state: &mut State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width));
        let text = |line: &[ratatui::buffer::Cell]| line.iter().map(|cell| cell.symbol()).collect();
        lines
            .map(text)
            .map(|line: String| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn picture_of_80_by_24_has_all_columns() {
        let lines = picture(&mut state(), 80, 24);
        assert_eq!(lines.len(), 24);
        assert_eq!(
            lines[0],
            "tenure top: 100 processes, 2 may not be read   pressure some   headroom 5 GiB"
        );
        assert!(
            lines[1].starts_with("stalled 7.0 %") && lines[1].ends_with('█'),
            "{lines:?}"
        );
        let header: Vec<_> = lines[3].split_whitespace().collect();
        let expected = [
            "PID", "name", "RSS", "lazily", "free", "volatile", "locked", "pending",
        ];
        assert_eq!(header, expected);
        let row: Vec<_> = lines[5].split_whitespace().collect();
        let expected = [
            "2",
            "a\\u{1b}[J2",
            "1.5",
            "GiB",
            "1",
            "GiB",
            "64",
            "MiB",
            "0",
            "0",
        ];
        assert_eq!(row, expected);
        assert!(lines[4].contains('–'), "{}", lines[4]);
        assert_eq!(lines[23], KEYS);
        // Rows fill the rest.
        assert!(lines[22].contains("a\\u{1b}[J19"), "{lines:?}");
    }

    #[test]
    fn picture_of_200_by_50_has_more_columns_and_rows() {
        let lines = picture(&mut state(), 200, 50);
        for name in ["PSS", "swapped", "huge pages"] {
            assert!(lines[3].contains(name), "{}", lines[3]);
        }
        assert!(lines[4].ends_with("?         0      2 MiB"), "{}", lines[4]);
        assert!(lines[48].contains("a\\u{1b}[J45"), "{lines:?}");
    }

    #[test]
    fn picture_of_a_tiny_terminal_does_not_panic() {
        for (width, height) in [(1, 1), (2, 9), (20, 3), (300, 4)] {
            picture(&mut state(), width, height);
            picture(&mut State::default(), width, height);
        }
    }

    #[test]
    fn marked_row_is_scrolled_into_view() {
        let mut state = state();
        state.table.select(Some(99));
        let lines = picture(&mut state, 80, 24);
        assert!(lines[22].contains("a\\u{1b}[J100"), "{lines:?}");
    }
}
