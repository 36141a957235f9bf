//! Makes the document of some records.

use super::{
    document::{Document, Group, Said, Section},
    figures, machines, plot,
    record::{Case, Experiment, Record},
    reference, sentence,
};

/// A record's place, what it is called where there are several, and what it says
/// about the experiment at hand.
pub struct Column<'a> {
    /// Its place among the records.
    pub place: usize,
    /// What it is called.
    pub label: Option<String>,
    /// What it says.
    pub experiment: &'a Experiment,
}

/// Makes the document: a section for each experiment, in which the records that
/// have it stand side by side.
pub fn document(records: &[Record]) -> Document {
    let names = in_order(records.iter().map(|record| {
        let experiments = record.experiments.iter();
        experiments.map(|experiment| experiment.name.as_str())
    }));
    let sections = names.iter().map(|name| section(name, records)).collect();
    Document {
        labels: records.iter().map(|record| record.label.clone()).collect(),
        summaries: records
            .iter()
            .map(|record| machines::summary(record, records.len() > 1))
            .collect(),
        machines: machines::table(records),
        methods: in_order(
            records
                .iter()
                .map(|record| record.method.as_deref().into_iter()),
        )
        .into_iter()
        .map(str::to_owned)
        .collect(),
        warnings: records.iter().flat_map(machines::warnings).collect(),
        sections,
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

fn section(name: &str, records: &[Record]) -> Section {
    let having: Vec<(usize, &Record, &Experiment)> = records
        .iter()
        .enumerate()
        .filter_map(|(place, record)| Some((place, record, record.experiment(name)?)))
        .collect();
    let label = |record: &Record, others: usize| (others > 1).then(|| record.label.clone());
    let column = |&(place, record, experiment): &(usize, &Record, _)| Column {
        place,
        label: label(record, having.len()),
        experiment,
    };
    let columns: Vec<Column<'_>> = having.iter().map(column).collect();
    // Where each experiment has a record of its own, a word about which is enough.
    let sentence = |(_, record, experiment): &(usize, &Record, &Experiment)| Said {
        label: label(record, records.len()),
        sentences: vec![sentence::of(experiment)],
    };
    let said = |sentences: &dyn Fn(&Experiment) -> Vec<String>| -> Vec<Said> {
        let said = columns.iter().map(|column| Said {
            label: column.label.clone(),
            sentences: sentences(column.experiment),
        });
        said.filter(|said| !said.sentences.is_empty()).collect()
    };
    let measured: Vec<&Column<'_>> = columns
        .iter()
        .filter(|column| !column.experiment.cases.is_empty())
        .collect();
    let labelled: Vec<_> = measured
        .iter()
        .map(|column| (column.label.clone(), column.experiment))
        .collect();
    let reference = reference::table(name, &labelled).filter(|_| !labelled.is_empty());
    let (reference, missing) = reference.map_or((None, 0), |(table, missing)| {
        (Some(table).filter(|table| !table.rows.is_empty()), missing)
    });
    let tables = in_order(measured.iter().map(|column| {
        let cases = column.experiment.cases.iter();
        cases.map(|case| case.table.as_str())
    }));
    // They may differ in their sizes.
    let titles = in_order(
        measured
            .iter()
            .map(|column| [column.experiment.title.as_str()].into_iter()),
    );
    Section {
        name: name.to_owned(),
        title: titles.join("; "),
        sentences: having.iter().map(sentence).collect(),
        reference,
        not_measured: (missing > 0).then(|| {
            format!(
                "{missing} more published comparisons were not measured here; \
                 tenure bench {name} --full measures all that this machine has room for."
            )
        }),
        groups: tables.iter().map(|table| group(table, &measured)).collect(),
        findings: said(&|experiment| sentences(&experiment.conclusion)),
        notes: said(&|experiment| notes(experiment)),
    }
}

/// Takes a text apart at the ends of its sentences.
fn sentences(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(". ").filter(|part| !part.is_empty()).collect();
    let whole = |(index, part): (usize, &&str)| {
        let is_last = index + 1 == parts.len();
        if is_last {
            (*part).to_owned()
        } else {
            format!("{part}.")
        }
    };
    parts.iter().enumerate().map(whole).collect()
}

fn notes(experiment: &Experiment) -> Vec<String> {
    let rounds = || experiment.cases.iter().map(|case| case.rounds);
    let (Some(fewest), Some(most)) = (rounds().min(), rounds().max()) else {
        return Vec::new();
    };
    let rounds = match (fewest, most) {
        (1, 1) => "One round: no spread is known.".to_owned(),
        (fewest, most) if fewest == most => {
            format!("Median (smallest–largest) of {most} rounds, in which the ways took turns.")
        }
        (fewest, most) => format!(
            "Median (smallest–largest) of {fewest} to {most} rounds, in which the ways took turns."
        ),
    };
    let ratios = "Ratios are computed round by round, and their median is shown.";
    let sizes = format!("Sizes: {}.", experiment.sizes);
    let sizes = (!experiment.sizes.is_empty()).then_some(sizes);
    [rounds, ratios.to_owned()]
        .into_iter()
        .chain(sizes)
        .chain(experiment.notes.iter().cloned())
        .collect()
}

fn group(title: &str, columns: &[&Column<'_>]) -> Group {
    let is_here = |case: &&Case| case.table == title;
    // A record that has nothing to say here has no column.
    let columns: Vec<(&Column<'_>, Vec<&Case>)> = columns
        .iter()
        .map(|column| {
            let cases = column.experiment.cases.iter().filter(is_here);
            (*column, cases.collect::<Vec<_>>())
        })
        .filter(|(_, cases)| !cases.is_empty())
        .collect();
    let drawn: Vec<_> = columns
        .iter()
        .map(|(column, cases)| (column.label.clone(), column.experiment, cases.clone()))
        .collect();
    let cases = || columns.iter().flat_map(|(_, cases)| cases);
    let first = cases().next().map_or("", |case| case.name.as_str());
    let has_names = !title.contains(first) || cases().any(|case| case.name != first);
    let mut plots = plot::plots(&drawn);
    for plot in &mut plots {
        plot.has_names = has_names;
    }
    Group {
        title: title.to_owned(),
        plots,
        table: figures::table(&columns, has_names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_order_of_all_lists() {
        let lists = [vec!["a", "c"], vec!["a", "b", "c", "d"]];
        let names = in_order(lists.iter().map(|list| list.iter().copied()));
        assert_eq!(names, ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_text_ends_in_whole_sentences() {
        let text = "With 1.04 times it is 1/4,625. Then 2.0 more. End.";
        assert_eq!(
            sentences(text),
            ["With 1.04 times it is 1/4,625.", "Then 2.0 more.", "End."]
        );
        assert!(sentences("").is_empty());
    }
}
