use serde_json::json;

use super::*;
use crate::text::significant;

/// A case with munmap and tenure in it, which take so many seconds.
fn case(name: &str, seconds: [f64; 2]) -> serde_json::Value {
    let way = |name: &str, seconds: f64| {
        let figure = json!({
            "name": "caller waits", "unit": "seconds", "samples": [seconds],
            "median": seconds, "minimum": seconds, "maximum": seconds
        });
        let is_tenure = name == "tenure";
        json!({"name": name, "is_tenure": is_tenure, "is_baseline": !is_tenure, "figures": [figure]})
    };
    let ways = [way("munmap", seconds[0]), way("tenure", seconds[1])];
    json!({"name": name, "rounds": 1, "ways": ways})
}

#[test]
fn reference_of_free_stands_beside_the_largest_in_base_pages() {
    let cases = [
        case("unmap 16 blocks of 64 MiB", [9.0, 9.0]),
        case("unmap 1 GiB", [2.0, 1.0]),
        case("unmap 8 GiB", [8.0, 2.0]),
        case("unmap 4 GiB, huge pages", [9.0, 9.0]),
    ];
    let experiment = json!({"name": "release", "compared": "caller waits", "cases": cases});
    let experiment: Experiment = serde_json::from_value(experiment).unwrap();
    let column = Column {
        place: 0,
        label: None,
        cases: experiment.cases.iter().collect(),
        experiment: &experiment,
    };
    let blocks = blocks("release", &[column]);
    let [
        Block::Heading { .. },
        Block::Table(_, table),
        Block::Paragraph(_, note),
    ] = &blocks[..]
    else {
        panic!("{} blocks", blocks.len());
    };
    // Nobody measured until all is freed, nor numbers of workers.
    assert_eq!(table.rows.len(), 1);
    assert!(note.contains(" 7 more published comparisons"), "{note}");
    assert_eq!(
        table.header,
        ["", "reference", "ratio", "tenure", "ratio", "measured with"]
    );
    let shown: Vec<&str> = table.rows[0].cells[2..].iter().map(Cell::shown).collect();
    let change = "8.00\u{a0}s\u{a0}→\u{a0}2.00\u{a0}s";
    assert_eq!(shown, ["1.86", change, "4.00", "unmap 8 GiB"]);
}

#[test]
fn reference_of_heap_is_empty() {
    assert!(blocks("heap", &[]).is_empty());
    assert!(reference("heap").is_none());
}

#[test]
fn reference_has_every_published_figure() {
    let rows = |name| -> Vec<_> {
        let published = reference(name).unwrap().published.iter();
        published.flat_map(|one| &one.rows).collect()
    };
    let counts =
        ["populate", "lock", "lazy_free", "volatile", "release"].map(|name| rows(name).len());
    assert_eq!(counts, [70, 6, 9, 2, 8]);
    let ratios = rows("lazy_free")
        .into_iter()
        .map(|row| significant(row.2 / row.1));
    let ratios: Vec<String> = ratios.collect();
    // As they were published.
    let published = [
        "1.87", "1.86", "1.74", "1.98", "1.80", "1.78", "1.75", "1.44", "1.16",
    ];
    assert_eq!(ratios, published);
}
