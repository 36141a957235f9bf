//! Plots as SVG inside the page. Positions along the axis are per cent of the width,
//! so that the text has the same size on a wide screen and on a phone; colours come
//! from the style sheet of the page.

use maud::{Markup, html};

use super::plot::{Mark, Plot};
use crate::record::{Case, Figure};
use crate::text::spread_text;

const CASE_HEIGHT: f64 = 28.0;
const WAY_HEIGHT: f64 = 34.0;
const AXIS_HEIGHT: f64 = 24.0;
/// How far below the top of a row its bar lies, and how thick it is.
const BAR: (f64, f64) = (19.0, 8.0);

/// Draws `plot`.
pub fn draw(plot: &Plot<'_>) -> Markup {
    let heading = if plot.has_names { CASE_HEIGHT } else { 0.0 };
    let mut bottom = 0.0;
    let mut tops = Vec::new();
    for (_, marks) in &plot.cases {
        tops.push(bottom);
        bottom += heading + WAY_HEIGHT * marks.len() as f64;
    }
    html! {
        svg role="img" aria-label=(description(plot)) width="100%" height=(bottom + AXIS_HEIGHT)
            data-scale=(if plot.axis.is_logarithmic { "logarithmic" } else { "linear" })
            data-from=(plot.axis.from) data-to=(plot.axis.to) {
            (axis(plot, bottom))
            @for ((case, marks), top) in plot.cases.iter().zip(tops) {
                @if plot.has_names { text .case x="0" y=(top + 20.0) { (case.name) } }
                @for (index, mark) in marks.iter().enumerate() {
                    (row(plot, case, mark, top + heading + WAY_HEIGHT * index as f64))
                }
            }
        }
    }
}

fn description(plot: &Plot<'_>) -> String {
    let mut text = format!("{}.", plot.figure);
    for (case, marks) in &plot.cases {
        let marks = marks.iter();
        let marks = marks.map(|(way, figure)| format!("{}: {}", way.name, figure_text(figure)));
        text += &format!(" {}: {}.", case.name, marks.collect::<Vec<_>>().join(", "));
    }
    text
}

fn figure_text(figure: &Figure) -> String {
    let series = &figure.series;
    spread_text(figure.unit, series.median, series.minimum, series.maximum)
}

/// The lines of the axis, and its labels below.
fn axis(plot: &Plot<'_>, bottom: f64) -> Markup {
    let last = plot.axis.ticks.len() - 1;
    html! {
        line .tick x1="0" x2="100%" y1=(bottom) y2=(bottom) {}
        @for (index, (value, label)) in plot.axis.ticks.iter().enumerate() {
            @let x = per_cent(plot.axis.place(*value));
            // The names and the figures stand at the edges.
            @let top = if index == 0 || index == last { bottom } else { 0.0 };
            line .tick x1=(x) x2=(x) y1=(top) y2=(bottom + 4.0) {}
            @let anchor = if index == 0 { "start" } else if index == last { "end" } else { "middle" };
            text .tick x=(x) y=(bottom + 17.0) text-anchor=(anchor) { (label) }
        }
    }
}

/// The name of a way, its figures, and below them a bar, or a dot on a logarithmic
/// axis, which has no zero; a thin line goes from the smallest to the largest.
fn row(plot: &Plot<'_>, case: &Case, (way, figure): &Mark<'_>, top: f64) -> Markup {
    let role = match way {
        _ if way.is_tenure => "tenure",
        _ if way.is_baseline => "baseline",
        _ => "other",
    };
    let series = &figure.series;
    let at = |value: f64| per_cent(plot.axis.place(value));
    let middle = top + BAR.0 + BAR.1 / 2.0;
    html! {
        g class=(role) data-case=(case.name) data-way=(way.name) {
            text .way x="0" y=(top + 13.0) { (way.name) }
            text .figure x="100%" y=(top + 13.0) text-anchor="end" { (figure_text(figure)) }
            line .track x1="0" x2="100%" y1=(middle) y2=(middle) {}
            @if !plot.axis.is_logarithmic {
                rect .mark x="0" width=(at(series.median)) y=(top + BAR.0) height=(BAR.1) rx="2" {}
            }
            line .spread x1=(at(series.minimum)) x2=(at(series.maximum)) y1=(middle) y2=(middle) {}
            @if plot.axis.is_logarithmic {
                circle .mark cx=(at(series.median)) cy=(middle) r="5" {}
            }
        }
    }
}

fn per_cent(part: f64) -> String {
    format!("{:.3}%", part * 100.0)
}
