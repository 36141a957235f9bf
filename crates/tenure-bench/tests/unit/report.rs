use super::*;

#[test]
fn labels_of_equal_file_names_are_paths() {
    let of = |files: &[&str]| labels(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
    assert_eq!(of(&["a/before.json", "a/after.json"]), ["before", "after"]);
    assert_eq!(of(&["a/1.json", "b/1.json"]), ["a/1.json", "b/1.json"]);
    assert_eq!(of(&["-"]), ["standard input"]);
}
