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
    let header = header.into_iter();
    table.set_header(header.map(|text| in_short_lines(text.as_ref(), width)));
    table
}

/// Breaks a text at spaces into lines of at most `max` characters.
pub fn in_short_lines(text: &str, max: usize) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let word_width = word.chars().count();
        if width > 0 {
            let fits = width + 1 + word_width <= max;
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
#[path = "../tests/unit/table.rs"]
mod tests;
