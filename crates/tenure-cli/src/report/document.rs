//! What a page says, before it is HTML or Markdown.

use super::plot::Plot;

/// A whole page.
pub struct Document {
    /// What the records are called, in the order of their columns.
    pub labels: Vec<String>,
    /// A line about the machine of each record.
    pub summaries: Vec<String>,
    /// Where the figures come from: a column for each record.
    pub machines: Table,
    /// How the figures came about, in the words of the records.
    pub methods: Vec<String>,
    /// What the reader has to be told about the records.
    pub warnings: Vec<String>,
    /// A section for each experiment.
    pub sections: Vec<Section>,
}

/// What one experiment has to say.
pub struct Section {
    /// The name of the experiment.
    pub name: String,
    /// What was measured.
    pub title: String,
    /// The sentence that says what the reader sees.
    pub sentences: Vec<Said>,
    /// The ratios of the reference figures, and those measured here.
    pub reference: Option<Table>,
    /// What this leaves out of the reference.
    pub not_measured: Option<String>,
    /// The figures.
    pub groups: Vec<Group>,
    /// What the experiment itself says about its data.
    pub findings: Vec<Said>,
    /// What a reader must know to judge the figures.
    pub notes: Vec<Said>,
}

/// Sentences of one record.
pub struct Said {
    /// Which record, where there are several.
    pub label: Option<String>,
    /// The sentences.
    pub sentences: Vec<String>,
}

/// The figures of cases that stand in one table.
pub struct Group {
    /// What they have in common; empty where the experiment has one table.
    pub title: String,
    /// The compared figures, for each record.
    pub plots: Vec<Plot>,
    /// All figures.
    pub table: Table,
}

/// A table.
pub struct Table {
    /// What stands above the columns.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Default)]
pub struct Row {
    /// Whether it belongs to tenure's way.
    pub is_tenure: bool,
    /// Whether something new begins with it.
    pub is_first: bool,
    /// The cells.
    pub cells: Vec<Cell>,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number, as read by people.
    Number(Number),
    /// Nothing was measured.
    Missing,
}

/// A number in a cell.
#[derive(Clone, Debug)]
pub struct Number {
    /// Which figure of which record it is, for who reads the page back: the
    /// record's place, the experiment, table, case, way and figure.
    pub key: Option<String>,
    /// The median, exactly.
    pub value: f64,
    /// The same with its spread, as people read it.
    pub text: String,
}

impl Cell {
    /// Makes a cell of words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell of a number that stands in no record.
    pub fn number(value: f64, text: String) -> Self {
        let key = None;
        Self::Number(Number { key, value, text })
    }

    /// Returns what people read.
    pub fn shown(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => &number.text,
            Self::Missing => "–",
        }
    }
}
