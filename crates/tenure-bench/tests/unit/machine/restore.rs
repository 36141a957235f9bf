use super::*;

#[test]
fn dropped_put_back_restores_the_number() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let put_back = PutBack::at_the_end(file.path(), 3, "the number").unwrap();
    fs::write(file.path(), "10\n").unwrap();
    drop(put_back);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "3\n");
}

#[test]
fn dropped_put_back_removes_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let group = folder.path().join("group");
    fs::create_dir(&group).unwrap();
    drop(PutBack::removed_at_the_end(&group).unwrap());
    assert!(!group.exists());
}

#[test]
fn killed_process_restores_the_number() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut put_back = PutBack::at_the_end(file.path(), 3, "the number").unwrap();
    fs::write(file.path(), "10\n").unwrap();
    // The kernel closes this when the process is killed.
    drop(put_back.shell.stdin.take());
    assert!(put_back.shell.wait().unwrap().success());
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "3\n");
}

fn setting(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn setting_that_suffices_is_left_alone() {
    let file = setting("65530\n");
    let raised = Setting::raise(file.path(), "a limit", 65_530).unwrap();
    assert!(!raised.is_raised());
    assert_eq!(raised.now, 65_530);
}

#[test]
fn low_setting_is_raised_and_put_back() {
    let file = setting("3\n");
    let raised = Setting::raise(file.path(), "a limit", 10).unwrap();
    assert!(raised.is_raised());
    assert_eq!((raised.now, read_number(file.path()).unwrap()), (10, 10));
    drop(raised);
    assert_eq!(read_number(file.path()).unwrap(), 3);
}

#[test]
fn setting_without_a_number_is_an_error() {
    let file = setting("many\n");
    assert!(Setting::raise(file.path(), "a limit", 10).is_err());
}
