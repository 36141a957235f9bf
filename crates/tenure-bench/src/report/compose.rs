//! Makes the page of some records.

use super::{block::Block, machines, plot, reference};
use crate::present::figures::{self, Column};
use crate::present::table::in_order;
use crate::present::{finding, headline};
use crate::record::{Experiment, OWN, Record};

/// The title of the page.
pub const TITLE: &str = "tenure beside the older ways";
const LEGEND: &str = "Blue is tenure's way, strong grey the older way that the ratios are to. The \
    ways of a case take turns in one run; a figure is the median of its rounds, and the thin line \
    goes from the smallest to the largest.";

/// Makes the page: the headline, a section for each experiment, in which the records
/// that have it stand side by side, and where the figures come from.
pub fn blocks(records: &[Record]) -> Vec<Block<'_>> {
    let names = in_order(records.iter().map(|record| {
        let experiments = record.experiments.iter();
        experiments.map(|experiment| experiment.name.as_str())
    }));
    let all: Vec<Vec<Column<'_>>> = names.iter().map(|name| columns(name, records)).collect();
    let mut blocks = vec![Block::heading(1, TITLE)];
    for record in records {
        let label = match records {
            [_] => String::new(),
            _ => format!("{}: ", record.label),
        };
        blocks.push(Block::note(label + &machines::summary(record)));
        let warnings = machines::warnings(record).into_iter();
        blocks.extend(warnings.map(|warning| Block::Paragraph("warning", warning)));
    }
    let headline = headline::page(all.iter().flatten());
    blocks.push(Block::Table("headline", headline));
    blocks.push(Block::note(LEGEND));
    blocks.push(Block::Links(
        names.iter().map(|&name| name.into()).collect(),
    ));
    for (name, columns) in names.iter().zip(&all) {
        section(name, columns, records, &mut blocks);
    }
    blocks.push(Block::heading(2, "Where the figures come from"));
    blocks.push(Block::Table("machines", machines::table(records)));
    let methods = records
        .iter()
        .map(|record| record.method.as_deref().into_iter());
    blocks.extend(in_order(methods).into_iter().map(Block::note));
    let labels: Vec<&str> = records.iter().map(|record| record.label.as_str()).collect();
    let made = format!("Made by tenure {OWN} from {}.", labels.join(", "));
    blocks.push(Block::note(made));
    blocks
}

/// Makes a column for each record that has the experiment `name`.
fn columns<'a>(name: &str, records: &'a [Record]) -> Vec<Column<'a>> {
    let column = |(place, record): (usize, &'a Record)| {
        let experiment = record.experiment(name)?;
        Some(Column {
            place,
            label: Some(record.label.clone()),
            experiment,
            cases: experiment.cases.iter().collect(),
        })
    };
    let mut columns: Vec<_> = records.iter().enumerate().filter_map(column).collect();
    if let [one] = &mut columns[..] {
        one.label = None;
    }
    columns
}

fn section<'a>(
    name: &str,
    columns: &[Column<'a>],
    records: &[Record],
    blocks: &mut Vec<Block<'a>>,
) {
    // The sizes of the records may differ, and their titles tell them.
    let titles = columns
        .iter()
        .map(|column| [column.experiment.title.as_str()].into_iter());
    let text = match in_order(titles).join("; ") {
        titles if titles.is_empty() => name.to_owned(),
        titles => format!("{name}: {titles}"),
    };
    let id = Some(name.to_owned());
    blocks.push(Block::Heading { level: 2, id, text });
    for column in columns {
        if records.len() > 1 {
            blocks.push(Block::heading(4, &records[column.place].label));
        }
        let sentences = finding::sentences(column.experiment);
        blocks.push(Block::List("findings", sentences));
    }
    let tables = columns
        .iter()
        .map(|column| column.cases.iter().map(|case| case.table.as_str()));
    for table in in_order(tables) {
        group(table, columns, blocks);
    }
    blocks.extend(reference::blocks(name, columns));
    for column in columns.iter().filter(|column| !column.cases.is_empty()) {
        let heading = format!("How it was measured{}", column.suffix());
        blocks.push(Block::heading(4, heading));
        blocks.push(Block::List("note", notes(column.experiment)));
    }
}

/// Makes the plots and figures of the cases in the table `title`.
fn group<'a>(title: &str, columns: &[Column<'a>], blocks: &mut Vec<Block<'a>>) {
    let columns = columns.iter().map(|column| {
        let cases = column.cases.iter().copied();
        Column {
            label: column.label.clone(),
            cases: cases.filter(|case| case.table == title).collect(),
            ..*column
        }
    });
    // A record without such a case has no column.
    let columns: Vec<_> = columns.filter(|column| !column.cases.is_empty()).collect();
    let cases = || columns.iter().flat_map(|column| &column.cases);
    let first = cases().next().map_or("", |case| case.name.as_str());
    let has_names = !title.contains(first) || cases().any(|case| case.name != first);
    if !title.is_empty() {
        blocks.push(Block::heading(3, title));
    }
    let plots = plot::plots(&columns, has_names);
    let table = figures::table(&columns, has_names);
    blocks.push(Block::Figures(plots, table));
}

fn notes(experiment: &Experiment) -> Vec<String> {
    let rounds = || experiment.cases.iter().map(|case| case.rounds);
    let count = match (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0)) {
        (min, max) if min == max => min.to_string(),
        (min, max) => format!("{min} to {max}"),
    };
    let rounds = match count.as_str() {
        "1" => "One round: no spread is known.".to_owned(),
        _ => format!(
            "Median (smallest–largest) of {count} rounds, in which the ways took turns. Ratios are \
             computed round by round, and their median is shown."
        ),
    };
    let sizes = (!experiment.sizes.is_empty()).then(|| format!("Sizes: {}.", experiment.sizes));
    let notes = experiment.notes.iter().cloned();
    [rounds].into_iter().chain(sizes).chain(notes).collect()
}
