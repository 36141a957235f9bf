//! The page as HTML: one file, no network, no script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    document::{Cell, Document, Group, Row, Said, Section, Table},
    plot::Plot,
    record::OWN,
    svg,
};

const STYLE: &str = include_str!("page.css");
/// Nothing is fetched, whatever a record says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Writes `document` as HTML.
pub fn render(document: &Document) -> String {
    let title = "tenure beside the older ways";
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
            body {
                header {
                    h1 { (title) }
                    @for summary in &document.summaries { p .machine { (summary) } }
                    nav {
                        @for section in &document.sections {
                            a href={ "#" (section.name) } { (section.name) }
                        }
                    }
                }
                main {
                    p .note {
                        "Blue is tenure's way, strong grey the older way that the ratios are to. The \
                         ways of a case take turns in one run; a figure is the median of its rounds, \
                         and the thin line goes from the smallest to the largest."
                    }
                    @for warning in &document.warnings { p .warning { (warning) } }
                    @for section in &document.sections { (self::section(section)) }
                    section #machine {
                        h2 { "Where the figures come from" }
                        (table(&document.machines, "machines"))
                        @for method in &document.methods { p .note { (method) } }
                    }
                }
                footer {
                    p { "Made by tenure " (OWN) " from " (document.labels.join(", ")) "." }
                }
            }
        }
    };
    in_lines(&page.into_string())
}

/// Begins a line with each part, for those who look at the source or compare two
/// pages. Text has no `<` in it: maud has written it as `&lt;`.
fn in_lines(page: &str) -> String {
    const PARTS: [&str; 18] = [
        "<head", "<meta", "<title", "<style", "<body", "<main", "<section", "<footer", "<h2",
        "<h3", "<h4", "<p", "<figure", "<svg", "<g ", "<div", "<tr", "<li",
    ];
    let mut text = page.to_owned();
    for part in PARTS {
        text = text.replace(part, &format!("\n{part}"));
    }
    text.push('\n');
    text
}

fn section(section: &Section) -> Markup {
    html! {
        section id=(section.name) {
            h2 { (section.name) @if !section.title.is_empty() { ": " span { (section.title) } } }
            @for said in &section.sentences {
                p .sentence { (label(said)) (said.sentences.join(" ")) }
            }
            @if section.reference.is_some() {
                p .note.jump { a href={ "#" (section.name) "-reference" } { "The published reference beside it" } }
            }
            @for group in &section.groups { (self::group(group)) }
            (reference(section))
            (list("What the experiment concludes", &section.findings))
            (list("How it was measured", &section.notes))
        }
    }
}

fn reference(section: &Section) -> Markup {
    html! {
        @if let Some(reference) = &section.reference {
            h3 id={ (section.name) "-reference" } { "The published reference beside what was measured here" }
            (table(reference, "reference"))
            p .note {
                "The reference comes from other machines and kernels; what can be compared is the \
                 ratio. a → b: from the older way to the newer one; the ratio says how many times \
                 as good the newer one is."
                @if let Some(missing) = &section.not_measured { " " (missing) }
            }
        }
    }
}

fn group(group: &Group) -> Markup {
    html! {
        @if !group.title.is_empty() { h3 { (group.title) } }
        // Side by side where there is room for both.
        div .group {
            @if !group.plots.is_empty() {
                div .plots { @for plot in &group.plots { (figure(plot)) } }
            }
            (table(&group.table, "figures"))
        }
    }
}

fn figure(plot: &Plot) -> Markup {
    let better = if plot.more_is_better {
        "more is better"
    } else {
        "less is better"
    };
    html! {
        figure {
            figcaption {
                @if let Some(label) = &plot.label { strong { (label) } ": " }
                (plot.figure) ", " (better)
                @if plot.scale.is_logarithmic { "; the axis is logarithmic" }
                @if plot.is_selection { "; the baseline, tenure, and the best of the other ways" }
            }
            (svg::draw(plot))
        }
    }
}

fn table(table: &Table, class: &str) -> Markup {
    let role = |row: &Row| match (row.is_tenure, row.is_first) {
        (true, true) => Some("tenure first"),
        (true, false) => Some("tenure"),
        (false, true) => Some("first"),
        (false, false) => None,
    };
    let number = |column: usize| {
        let mut cells = table.rows.iter().map(|row| &row.cells[column]);
        let is_number = cells.any(|cell| matches!(cell, Cell::Number(_)));
        is_number.then_some("number")
    };
    let cell = |column: usize, cell: &Cell| {
        html! {
            @match cell {
                Cell::Number(number) => td .number {
                    data value=(number.value) data-key=[&number.key] { (number.text) }
                },
                _ => td class=[number(column)] { (cell.shown()) },
            }
        }
    };
    html! {
        // What is wider than the screen scrolls in its own box, also by keys.
        div .scroll tabindex="0" {
            table class=(class) {
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
                            @for (column, one) in row.cells.iter().enumerate() { (cell(column, one)) }
                        }
                    }
                }
            }
        }
    }
}

fn list(heading: &str, all: &[Said]) -> Markup {
    html! {
        @for said in all {
            h4 { (heading) @if let Some(label) = &said.label { ", " (label) } }
            ul { @for sentence in &said.sentences { li { (sentence) } } }
        }
    }
}

fn label(said: &Said) -> Markup {
    html! { @if let Some(label) = &said.label { strong { (label) ": " } } }
}
