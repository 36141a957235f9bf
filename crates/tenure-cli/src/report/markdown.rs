//! The page as Markdown: sentences and tables.

use std::fmt::Write as _;

use super::document::{Cell, Document, Said, Table};

/// Writes `document` as Markdown.
pub fn render(document: &Document) -> String {
    let mut text = String::from("# tenure beside the older ways\n");
    for summary in &document.summaries {
        push(&mut text, &format!("\n{}\n", escape(summary)));
    }
    for warning in &document.warnings {
        push(&mut text, &format!("\n**{}**\n", escape(warning)));
    }
    push(&mut text, &format!("\n{}", table(&document.machines)));
    for method in &document.methods {
        push(&mut text, &format!("\n{}\n", escape(method)));
    }
    for section in &document.sections {
        push(&mut text, &format!("\n## {}", escape(&section.name)));
        if !section.title.is_empty() {
            push(&mut text, &format!(": {}", escape(&section.title)));
        }
        text.push('\n');
        push(&mut text, &paragraphs(&section.sentences));
        if let Some(reference) = &section.reference {
            push(&mut text, "\n### The reference and this record\n\n");
            push(&mut text, &table(reference));
        }
        if let Some(missing) = &section.not_measured {
            push(&mut text, &format!("\n{}\n", escape(missing)));
        }
        for group in &section.groups {
            if !group.title.is_empty() {
                push(&mut text, &format!("\n### {}\n", escape(&group.title)));
            }
            push(&mut text, &format!("\n{}", table(&group.table)));
        }
        push(
            &mut text,
            &list("What the experiment concludes", &section.findings),
        );
        push(&mut text, &list("How it was measured", &section.notes));
    }
    text
}

/// Appends; a string takes all that is written to it.
fn push(text: &mut String, more: &str) {
    text.push_str(more);
}

fn paragraphs(all: &[Said]) -> String {
    let paragraph = |said: &Said| {
        let label = said.label.as_ref();
        let label = label.map_or(String::new(), |label| format!("**{}:** ", escape(label)));
        format!("\n{label}{}\n", escape(&said.sentences.join(" ")))
    };
    all.iter().map(paragraph).collect()
}

fn list(heading: &str, all: &[Said]) -> String {
    let mut text = String::new();
    for said in all {
        let label = said.label.as_ref();
        let label = label.map_or(String::new(), |label| format!(", {}", escape(label)));
        let _ = write!(text, "\n{heading}{label}:\n\n");
        for sentence in &said.sentences {
            let _ = writeln!(text, "- {}", escape(sentence));
        }
    }
    text
}

fn table(table: &Table) -> String {
    let line = |cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = cells.collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let is_number = |column: usize| {
        let mut cells = table.rows.iter().map(|row| &row.cells[column]);
        cells.any(|cell| matches!(cell, Cell::Number(_)))
    };
    let mut text = line(&mut table.header.iter().map(|name| escape(name)));
    let rule = |column| if is_number(column) { "---:" } else { "---" };
    text.push_str(&line(
        &mut (0..table.header.len()).map(|column| rule(column).to_owned()),
    ));
    for row in &table.rows {
        let shown = |cell: &Cell| match escape(cell.shown()) {
            text if row.is_tenure && !text.is_empty() => format!("**{text}**"),
            text => text,
        };
        text.push_str(&line(&mut row.cells.iter().map(shown)));
    }
    text
}

/// Keeps what has a meaning in Markdown from having it.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(
            c,
            '\\' | '|' | '*' | '_' | '`' | '<' | '>' | '#' | '[' | ']'
        ) {
            escaped.push('\\');
        }
        escaped.push(if c == '\n' { ' ' } else { c });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_is_escaped() {
        assert_eq!(escape("MADV_FREE | <b>*\n"), "MADV\\_FREE \\| \\<b\\>\\* ");
    }
}
