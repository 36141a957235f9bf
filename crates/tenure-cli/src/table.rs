//! Tables as people read them.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

/// Makes a table with three lines and no frames, whose headers are broken into
/// lines of `width`.
pub fn table_with(header: impl IntoIterator<Item = impl AsRef<str>>, width: usize) -> Table {
    const LINE: LineStyle = LineStyle::none().fill('─').junction('─');
    const STYLE: TableStyle = TableStyle::new()
        .top_border(LINE)
        .header_separator(LINE)
        .bottom_border(LINE);
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(
        header
            .into_iter()
            .map(|text| in_short_lines(text.as_ref(), width)),
    );
    table
}

/// Breaks the text of a header at spaces, so that it makes no column wide.
fn in_short_lines(text: &str, most: usize) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let word_width = word.chars().count();
        if width > 0 {
            let fits = width + 1 + word_width <= most;
            lines.push(if fits { ' ' } else { '\n' });
            width = if fits { width + 1 } else { 0 };
        }
        lines.push_str(word);
        width += word_width;
    }
    lines
}

/// Makes a cell that stands to the right.
pub fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_broken_at_spaces() {
        assert_eq!(in_short_lines("caller waits", 18), "caller waits");
        assert_eq!(
            in_short_lines("times as fast as mlock before each read", 18),
            "times as fast as\nmlock before each\nread"
        );
    }
}
