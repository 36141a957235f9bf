//! Plots as SVG inside the page: positions along the axis are per cent of the
//! width there is, so that the text has the same size on a wide screen and on a
//! phone; colours come from the page's style sheet.

use maud::{Markup, html};

use super::plot::{Mark, Plot, PlotCase, Role};

const CASE_HEIGHT: f64 = 28.0;
const WAY_HEIGHT: f64 = 34.0;
const AXIS_HEIGHT: f64 = 24.0;
/// How far below the top of a row its bar lies, and how thick it is.
const BAR: (f64, f64) = (19.0, 8.0);

/// Draws `plot`.
pub fn draw(plot: &Plot) -> Markup {
    let heading = if plot.has_names { CASE_HEIGHT } else { 0.0 };
    let height_of = |case: &PlotCase| heading + WAY_HEIGHT * case.marks.len() as f64;
    let bottom: f64 = plot.cases.iter().map(height_of).sum();
    let mut top = 0.0;
    let tops: Vec<f64> = plot
        .cases
        .iter()
        .map(|case| {
            let own = top;
            top += height_of(case);
            own
        })
        .collect();
    html! {
        svg role="img" aria-label=(description(plot)) width="100%" height=(bottom + AXIS_HEIGHT)
            data-scale=(if plot.scale.is_logarithmic { "logarithmic" } else { "linear" })
            data-from=(plot.scale.from) data-to=(plot.scale.to) {
            (axis(plot, bottom))
            @for (case, top) in plot.cases.iter().zip(tops) {
                @if plot.has_names {
                    text .case x="0" y=(top + 20.0) { (case.name) }
                }
                @for (index, mark) in case.marks.iter().enumerate() {
                    (row(plot, case, mark, top + heading + WAY_HEIGHT * index as f64))
                }
            }
        }
    }
}

fn description(plot: &Plot) -> String {
    let case = |case: &PlotCase| {
        let mark = |mark: &Mark| format!("{}: {}", mark.way, mark.text);
        let marks: Vec<String> = case.marks.iter().map(mark).collect();
        format!("{}: {}", case.name, marks.join(", "))
    };
    let cases: Vec<String> = plot.cases.iter().map(case).collect();
    format!("{}. {}", plot.figure, cases.join(". "))
}

/// The lines of the axis, and its labels below.
fn axis(plot: &Plot, bottom: f64) -> Markup {
    html! {
        line .tick x1="0" x2="100%" y1=(bottom) y2=(bottom) {}
        @for (index, (value, label)) in plot.scale.ticks.iter().enumerate() {
            @let x = per_cent(plot.scale.place(*value));
            @let is_last = index + 1 == plot.scale.ticks.len();
            // At the edges are the names and the figures.
            @let above = if index == 0 || is_last { bottom } else { 0.0 };
            line .tick x1=(x) x2=(x) y1=(above) y2=(bottom + 4.0) {}
            @let anchor = if index == 0 { "start" } else if is_last { "end" } else { "middle" };
            text .tick x=(x) y=(bottom + 17.0) text-anchor=(anchor) { (label) }
        }
    }
}

/// The name of a way, its figures, and below them a bar, or a dot where the axis
/// does not begin with nothing; a thin line goes from the smallest to the largest.
fn row(plot: &Plot, case: &PlotCase, mark: &Mark, top: f64) -> Markup {
    let role = match mark.role {
        Role::Tenure => "tenure",
        Role::Baseline => "baseline",
        Role::Other => "other",
    };
    let at = |value: f64| per_cent(plot.scale.place(value));
    let middle = top + BAR.0 + BAR.1 / 2.0;
    html! {
        g class=(role) data-case=(case.name) data-way=(mark.way) {
            text .way x="0" y=(top + 13.0) { (mark.way) }
            text .figure x="100%" y=(top + 13.0) text-anchor="end" { (mark.text) }
            line .track x1="0" x2="100%" y1=(middle) y2=(middle) {}
            @if plot.scale.is_logarithmic {
                line .spread x1=(at(mark.minimum)) x2=(at(mark.maximum)) y1=(middle) y2=(middle) {}
                circle .mark cx=(at(mark.median)) cy=(middle) r="5" {}
            } @else {
                rect .mark x="0" width=(at(mark.median)) y=(top + BAR.0) height=(BAR.1) rx="2" {}
                line .spread x1=(at(mark.minimum)) x2=(at(mark.maximum)) y1=(middle) y2=(middle) {}
            }
        }
    }
}

fn per_cent(part: f64) -> String {
    format!("{:.3}%", part * 100.0)
}
