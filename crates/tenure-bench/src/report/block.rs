//! The parts of a page, before they are HTML or Markdown.

use super::plot::Plot;
use crate::present::table::{Cell, Table};

/// A part of the page, from top to bottom.
pub enum Block<'a> {
    /// A heading of level 1 to 4; links to its `id` lead there.
    Heading {
        level: u8,
        id: Option<String>,
        text: String,
    },
    /// The name of a style, and some sentences.
    Paragraph(&'static str, String),
    /// The name of a style, and sentences, each in a line of its own.
    List(&'static str, Vec<String>),
    /// Links to the headings with these ids.
    Links(Vec<String>),
    /// The name of a style, and a table.
    Table(&'static str, Table),
    /// Plots, and the table of all their figures beside them.
    Figures(Vec<Plot<'a>>, Table),
}

impl Block<'_> {
    /// Makes a heading that no link leads to.
    pub fn heading(level: u8, text: impl Into<String>) -> Self {
        Self::Heading {
            level,
            id: None,
            text: text.into(),
        }
    }

    /// Makes a small paragraph.
    pub fn note(text: impl Into<String>) -> Self {
        Self::Paragraph("note", text.into())
    }
}

/// Whether numbers stand in that column of `table`.
pub fn is_number(table: &Table, column: usize) -> bool {
    let mut cells = table.rows.iter().map(|row| &row.cells[column]);
    cells.any(|cell| matches!(cell, Cell::Number(_)))
}
