use super::*;

#[test]
fn environment_describes_this_machine() {
    let environment = read().unwrap();
    let number = |key: &str| environment[key].as_u64().unwrap();
    assert!(number("cpus_allowed") >= 1);
    assert!(number("memory_available_bytes") <= number("memory_total_bytes"));
    assert!(number("memory_room_bytes") > 0);
    let text = |key: &str| environment[key].as_str().unwrap();
    assert!(text("kernel").starts_with(|c: char| c.is_ascii_digit()));
    assert!(!text("memory_room_bound").is_empty());
}

#[test]
fn mitigations_are_those_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("meltdown"), "Mitigation: PTI\n").unwrap();
    let found = mitigations(folder.path());
    assert_eq!(found.len(), 1);
    assert_eq!(found["meltdown"], "Mitigation: PTI");
    assert!(mitigations(&folder.path().join("none")).is_empty());
}
