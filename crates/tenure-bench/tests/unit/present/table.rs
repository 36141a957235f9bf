use super::*;

#[test]
fn names_keep_the_order_of_all_lists() {
    let lists = [vec!["a", "c"], vec!["a", "b", "c", "d"]];
    let names = in_order(lists.iter().map(|list| list.iter().copied()));
    assert_eq!(names, ["a", "b", "c", "d"]);
}
