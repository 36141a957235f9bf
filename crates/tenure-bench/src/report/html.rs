//! The page as HTML: one file, no network, no script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::block::{self, Block};
use super::plot::Plot;
use super::svg;
use crate::present::table::{Cell, Row, Table};
use crate::record::{Better, OWN};

const STYLE: &str = include_str!("page.css");
/// Nothing is fetched, whatever a record says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/// Each begins a line, for those who read the source or compare two pages. Text has
/// no `<` in it: maud has written it as `&lt;`.
const BEGIN_LINES: [&str; 18] = [
    "<head", "<meta", "<title", "<style", "<body", "<main", "<nav", "<footer", "<h1", "<h2", "<h3",
    "<h4", "<p", "<figure", "<svg", "<g ", "<tr", "<li",
];

/// Writes the page.
pub fn render(title: &str, blocks: &[Block<'_>]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("tenure {OWN}"));
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { @for block in blocks { (self::block(block)) } } }
        }
    };
    let mut page = page.into_string();
    for part in BEGIN_LINES {
        page = page.replace(part, &format!("\n{part}"));
    }
    page + "\n"
}

fn block(block: &Block<'_>) -> Markup {
    html! {
        @match block {
            Block::Heading { level: 1, text, .. } => h1 { (text) },
            Block::Heading { level: 2, id, text } => h2 id=[id] { (text) },
            Block::Heading { level: 3, text, .. } => h3 { (text) },
            Block::Heading { text, .. } => h4 { (text) },
            Block::Paragraph(style, text) => p class=(style) { (text) },
            Block::List(style, items) => ul class=(style) { @for item in items { li { (item) } } },
            Block::Links(ids) => nav { @for id in ids { a href={ "#" (id) } { (id) } } },
            Block::Table(style, table) => (self::table(style, table)),
            // Side by side where the screen is wide enough for both.
            Block::Figures(plots, table) => div .group {
                @if !plots.is_empty() {
                    div .plots { @for plot in plots { (figure(plot)) } }
                }
                (self::table("figures", table))
            },
        }
    }
}

fn figure(plot: &Plot<'_>) -> Markup {
    html! {
        figure {
            figcaption {
                @if let Some(label) = &plot.label { strong { (label) } ": " }
                (plot.figure)
                (if plot.better == Better::More { ", more is better" } else { ", less is better" })
                @if plot.axis.is_logarithmic { "; the axis is logarithmic" }
                @if plot.is_selection { "; the baseline, tenure, and the best of the other ways" }
            }
            (svg::draw(plot))
        }
    }
}

fn table(style: &str, table: &Table) -> Markup {
    let role = |row: &Row| match (row.is_tenure, row.is_first) {
        (true, true) => Some("tenure first"),
        (true, false) => Some("tenure"),
        (false, true) => Some("first"),
        (false, false) => None,
    };
    let number = |column: usize| block::is_number(table, column).then_some("number");
    html! {
        // A table that is wider than the screen scrolls in its own box, also by keys.
        div .scroll tabindex="0" {
            table class=(style) {
                thead {
                    tr {
                        @for (column, name) in table.header.iter().enumerate() {
                            th scope="col" class=[number(column)] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr class=[role(row)] {
                            @for (column, cell) in row.cells.iter().enumerate() {
                                td class=[number(column)] {
                                    @if let Cell::Number(number) = cell {
                                        data value=(number.value) data-key=[&number.key] { (number.text) }
                                    } @else { (cell.shown()) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
