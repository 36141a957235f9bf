//! The page as Markdown: the same without plots.

use super::block::{self, Block};
use crate::present::table::{Cell, Table};

/// Writes the page.
pub fn render(blocks: &[Block<'_>]) -> String {
    let parts = blocks.iter().map(block).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n\n") + "\n"
}

fn block(block: &Block<'_>) -> String {
    match block {
        Block::Heading { level, text, .. } => {
            format!("{} {}", "#".repeat(usize::from(*level)), escape(text))
        }
        Block::Paragraph("warning", text) => format!("**{}**", escape(text)),
        Block::Paragraph(_, text) => escape(text),
        Block::List(_, items) => {
            let items = items.iter().map(|item| format!("- {}", escape(item)));
            items.collect::<Vec<_>>().join("\n")
        }
        // The sites that show Markdown make their own.
        Block::Links(_) => String::new(),
        Block::Table(_, table) | Block::Figures(_, table) => self::table(table),
    }
}

fn table(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let rule = |column| {
        if block::is_number(table, column) {
            "---:"
        } else {
            "---"
        }
    };
    let header = table.header.iter().map(|name| escape(name)).collect();
    let rules = (0..table.header.len()).map(|column| rule(column).to_owned());
    let mut lines = vec![line(header), line(rules.collect())];
    for row in &table.rows {
        let shown = |cell: &Cell| match escape(cell.shown()) {
            text if row.is_tenure && !text.is_empty() => format!("**{text}**"),
            text => text,
        };
        lines.push(line(row.cells.iter().map(shown).collect()));
    }
    lines.join("\n")
}

/// Escapes what has a meaning in Markdown.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\|*_`<>#[]".contains(c) {
            escaped.push('\\');
        }
        escaped.push(if c == '\n' { ' ' } else { c });
    }
    escaped
}

#[cfg(test)]
#[path = "../../tests/unit/report/markdown.rs"]
mod tests;
