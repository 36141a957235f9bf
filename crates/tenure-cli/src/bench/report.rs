//! The report: a JSON document, or headings, tables and sentences.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

use super::{
    environment::Environment,
    experiment::{CaseResult, FigureResult, Unit, WayResult},
    statistics::Series,
    text::{bytes_text, spread_text},
};
use crate::cli::ExperimentName;

/// All that `tenure bench --json` prints.
#[derive(Serialize)]
pub struct Report {
    /// Where the figures come from.
    pub environment: Environment,
    /// Which sizes were used.
    pub sizes: &'static str,
    /// What random contents and offsets were made from.
    pub seed: u64,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<ExperimentReport>,
}

/// One experiment.
#[derive(Serialize)]
pub struct ExperimentReport {
    /// Which one.
    pub name: ExperimentName,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of an experiment.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It was measured.
    Measured(Findings),
    /// It could not be measured, or an answer was wrong.
    Failed {
        /// Why.
        error: String,
    },
}

/// What an experiment found.
#[derive(Serialize)]
pub struct Findings {
    /// What was measured.
    pub title: String,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// The figure whose ratio to the baseline is `times_as_good`.
    pub compared: &'static str,
    /// The cases with their ways and figures.
    pub cases: Vec<CaseResult>,
    /// What the data say.
    pub conclusion: String,
}

/// Returns the lines that stand above all experiments.
pub fn heading(environment: &Environment) -> String {
    let Environment {
        tenure_version,
        build_profile,
        kernel,
        architecture,
        cpu_model,
        cpus_allowed,
        transparent_huge_pages,
        ..
    } = environment;
    let hypervisor = if environment.hypervisor {
        ", in a virtual machine"
    } else {
        ""
    };
    let total = bytes_text(environment.memory_total_bytes as f64);
    let available = bytes_text(environment.memory_available_bytes as f64);
    let page_size = bytes_text(environment.page_size_bytes as f64);
    format!(
        "tenure {tenure_version}, {build_profile} build\n\
         Linux {kernel}, {architecture}{hypervisor}\n\
         {cpu_model}, {cpus_allowed} CPUs allowed\n\
         {total} of memory, {available} available; base pages of {page_size}, \
         transparent huge pages: {transparent_huge_pages}\n"
    )
}

impl ExperimentReport {
    /// Returns the experiment as people read it.
    pub fn text(&self) -> String {
        let name = self.name.as_str();
        match &self.outcome {
            Outcome::Failed { error } => format!("\n{name}: failed\n{error}\n"),
            Outcome::Measured(findings) => format!("\n{name}: {}", findings.text()),
        }
    }
}

impl Findings {
    fn text(&self) -> String {
        let table = if self.is_matrix() {
            self.matrix()
        } else {
            self.list()
        };
        let notes: String = self.notes.iter().map(|note| format!(" {note}")).collect();
        format!(
            "{}\n{}\n{}{notes}\n=> {}\n",
            self.title,
            table.trim_fmt(),
            self.rounds(),
            self.conclusion
        )
    }

    fn rounds(&self) -> String {
        let rounds = || self.cases.iter().map(|case| case.rounds);
        match (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0)) {
            (1, 1) => "One round.".to_owned(),
            (fewest, most) if fewest == most => {
                format!("Median (smallest–largest) of {most} rounds.")
            }
            (fewest, most) => format!("Median (smallest–largest) of {fewest} to {most} rounds."),
        }
    }

    /// Says whether a row for each case says it all: one figure for each way.
    fn is_matrix(&self) -> bool {
        let ways = || self.cases.iter().flat_map(|case| &case.ways);
        self.cases.len() > 1 && ways().all(|way| way.figures.len() == 1)
    }

    /// A row for each case, a column for each way, and tenure's ratio.
    fn matrix(&self) -> Table {
        let mut names: Vec<&str> = Vec::new();
        for way in self.cases.iter().flat_map(|case| &case.ways) {
            if !names.contains(&way.name) {
                names.push(way.name);
            }
        }
        let ratio = format!("tenure: {}", self.ratio_name());
        let header = [""].into_iter().chain(names.iter().copied());
        let mut table = table_with(header.chain([ratio.as_str()]));
        for case in &self.cases {
            let mut row = vec![Cell::new(&case.name)];
            for name in &names {
                let figure = case.way(name).and_then(|way| way.figures.first());
                row.push(number(figure.map_or("–".to_owned(), figure_text)));
            }
            row.push(number(case.tenure().map_or("–".to_owned(), series_text)));
            table.add_row(row);
        }
        table
    }

    /// A row for each way of each case, a column for each figure.
    fn list(&self) -> Table {
        let has_cases = self.cases.len() > 1;
        let ratio = self.ratio_name();
        let mut header: Vec<&str> = Vec::new();
        header.extend(has_cases.then_some(""));
        header.push("way");
        let first_way = self.cases.iter().flat_map(|case| &case.ways).next();
        header.extend(
            first_way
                .iter()
                .flat_map(|way| &way.figures)
                .map(|figure| figure.name),
        );
        header.push(&ratio);
        let mut table = table_with(header);
        for case in &self.cases {
            for (index, way) in case.ways.iter().enumerate() {
                let mut row: Vec<Cell> = Vec::new();
                let case_name = if index == 0 { case.name.as_str() } else { "" };
                row.extend(has_cases.then(|| Cell::new(case_name)));
                row.push(Cell::new(way.name));
                row.extend(way.figures.iter().map(|figure| number(figure_text(figure))));
                row.push(number(ratio_cell(way)));
                table.add_row(row);
            }
        }
        table
    }

    /// Names the ratio after the baseline where all cases have the same.
    fn ratio_name(&self) -> String {
        let baseline = |case: &CaseResult| {
            let way = case.ways.iter().find(|way| way.is_baseline)?;
            Some(way.name)
        };
        let mut baselines = self.cases.iter().map(baseline);
        match baselines.next().flatten() {
            Some(name) if baselines.all(|other| other == Some(name)) => {
                format!("times as fast as {name}")
            }
            _ => "times as fast as the baseline".to_owned(),
        }
    }
}

fn table_with(header: impl IntoIterator<Item = impl AsRef<str>>) -> Table {
    const LINE: LineStyle = LineStyle::none().fill('─').junction('─');
    const STYLE: TableStyle = TableStyle::new()
        .top_border(LINE)
        .header_separator(LINE)
        .bottom_border(LINE);
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header.into_iter().map(|text| in_short_lines(text.as_ref())));
    table
}

/// Breaks the text of a header at spaces, so that it makes no column wide.
fn in_short_lines(text: &str) -> String {
    const WIDTH: usize = 18;
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let word_width = word.chars().count();
        if width > 0 {
            let fits = width + 1 + word_width <= WIDTH;
            lines.push(if fits { ' ' } else { '\n' });
            width = if fits { width + 1 } else { 0 };
        }
        lines.push_str(word);
        width += word_width;
    }
    lines
}

fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn figure_text(figure: &FigureResult) -> String {
    let Series {
        median,
        minimum,
        maximum,
        ..
    } = figure.series;
    spread_text(figure.unit, median, minimum, maximum)
}

fn series_text(ratio: &Series) -> String {
    spread_text(Unit::Ratio, ratio.median, ratio.minimum, ratio.maximum)
}

fn ratio_cell(way: &WayResult) -> String {
    match &way.times_as_good {
        _ if way.is_baseline => "baseline".to_owned(),
        Some(ratio) => series_text(ratio),
        None => "–".to_owned(),
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
