use super::*;
use crate::fixture::timed;

#[test]
fn keep_few_leaves_baseline_best_other_and_tenure() {
    let ways = [("old", 9.0), ("high", 3.0), ("low", 1.0), ("tenure", 2.0)];
    let case = timed("", "", &ways);
    let kept = |better| {
        let marks = case.ways.iter().map(|way| (way, &way.figures[0]));
        let mut marks: Vec<Mark<'_>> = marks.collect();
        keep_few(&mut marks, better);
        let names = marks.into_iter().map(|(way, _)| way.name.as_str());
        names.collect::<Vec<_>>()
    };
    assert_eq!(kept(Better::Less), ["old", "low", "tenure"]);
    assert_eq!(kept(Better::More), ["old", "high", "tenure"]);
}
