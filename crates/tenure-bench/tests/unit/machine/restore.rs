use super::*;

#[test]
fn dropped_put_back_restores_the_number() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lock = file.reopen().unwrap();
    let put_back = PutBack::at_the_end(file.path(), 3, "the number", lock).unwrap();
    fs::write(file.path(), "10\n").unwrap();
    drop(put_back);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "3\n");
}

#[test]
fn shell_that_waits_to_restore_needs_no_other_process() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lock = file.reopen().unwrap();
    let put_back = PutBack::at_the_end(file.path(), 3, "the number", lock).unwrap();
    let pid = put_back.shell.id();
    let read = |name| fs::read_to_string(format!("/proc/{pid}/task/{pid}/{name}")).unwrap();
    // It reads (system call 0) from the pipe, or waits for one that does.
    let begun = std::time::Instant::now();
    while !read("stat").contains(") S ") {
        assert!(begun.elapsed().as_secs() < 60);
        std::thread::yield_now();
    }
    assert_eq!(read("children"), "");
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
    let lock = file.reopen().unwrap();
    let mut put_back = PutBack::at_the_end(file.path(), 3, "the number", lock).unwrap();
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
    let raised = Setting::raise(file.path(), "a limit", |_| Ok(65_530)).unwrap();
    assert!(!raised.is_raised());
    assert_eq!(raised.now, 65_530);
}

#[test]
fn low_setting_is_raised_and_put_back() {
    let file = setting("3\n");
    let raised = Setting::raise(file.path(), "a limit", |_| Ok(10)).unwrap();
    assert!(raised.is_raised());
    assert_eq!((raised.now, read_number(file.path()).unwrap()), (10, 10));
    drop(raised);
    assert_eq!(read_number(file.path()).unwrap(), 3);
}

#[test]
fn setting_without_a_number_is_an_error() {
    let file = setting("many\n");
    assert!(Setting::raise(file.path(), "a limit", |_| Ok(10)).is_err());
}

#[test]
fn raised_setting_cannot_be_raised_by_another_until_it_is_put_back() {
    let file = setting("3\n");
    let raise = |wanted| Setting::raise(file.path(), "a limit", move |_| Ok(wanted));
    let first = raise(10).unwrap();
    // The first would take away what the second relies on, or the second put back 10.
    for wanted in [20, 10] {
        let error = raise(wanted).err().unwrap().to_string();
        assert!(
            error.contains("another process has raised a limit"),
            "{error}"
        );
    }
    drop(first);
    drop(raise(20).unwrap());
    assert_eq!(read_number(file.path()).unwrap(), 3);
}

#[test]
fn setting_of_a_killed_process_is_locked_until_it_is_put_back() {
    let file = setting("3\n");
    let mut first = Setting::raise(file.path(), "a limit", |_| Ok(10)).unwrap();
    let shell = &mut first.put_back.as_mut().unwrap().shell;
    let pid = rustix::process::Pid::from_child(shell);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // The kernel closes this when the process is killed.
    drop(shell.stdin.take());
    assert!(Setting::raise(file.path(), "a limit", |_| Ok(20)).is_err());
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(shell.wait().unwrap().success());
    let second = Setting::raise(file.path(), "a limit", |_| Ok(20)).unwrap();
    drop(second);
    assert_eq!(read_number(file.path()).unwrap(), 3);
}

#[test]
fn settings_that_suffice_are_shared() {
    let file = setting("30\n");
    let raise = |wanted| Setting::raise(file.path(), "a limit", move |_| Ok(wanted));
    let (first, second) = (raise(10).unwrap(), raise(20).unwrap());
    assert!(!first.is_raised() && !second.is_raised());
    assert!(raise(40).is_err());
}
