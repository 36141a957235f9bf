//! A table before it is text, HTML or Markdown.

#[derive(Default)]
pub struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Default)]
pub struct Row {
    /// Whether it belongs to tenure's way.
    pub is_tenure: bool,
    /// Whether a case begins with it.
    pub is_first: bool,
    pub cells: Vec<Cell>,
}

impl Row {
    /// Makes a row that belongs to no way and no case.
    pub fn of(cells: Vec<Cell>) -> Self {
        Self {
            cells,
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Number(Number),
    /// Nothing was measured.
    Missing,
}

#[derive(Clone, Debug)]
pub struct Number {
    /// The record's place, the experiment, table, case, way and figure, for a
    /// program that reads the page back.
    pub key: Option<String>,
    /// The median, exactly.
    pub value: f64,
    /// The median with its spread, as people read it.
    pub text: String,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell of a number that stands in no record.
    pub fn number(value: f64, text: String) -> Self {
        let key = None;
        Self::Number(Number { key, value, text })
    }

    pub fn or_missing(cell: Option<Self>) -> Self {
        cell.unwrap_or(Self::Missing)
    }

    pub fn shown(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => &number.text,
            Self::Missing => "–",
        }
    }
}

/// Returns every name once, each behind the one that it follows in a list.
pub fn in_order<'a>(lists: impl Iterator<Item = impl Iterator<Item = &'a str>>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for list in lists {
        let mut place = 0;
        for name in list {
            if let Some(known) = names.iter().position(|&known| known == name) {
                place = known + 1;
            } else {
                names.insert(place, name);
                place += 1;
            }
        }
    }
    names
}

#[cfg(test)]
#[path = "../../tests/unit/present/table.rs"]
mod tests;
