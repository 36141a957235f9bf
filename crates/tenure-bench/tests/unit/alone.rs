//! Tests that nothing else of this process may disturb.

use std::{any, env, process::Command};

/// Runs a test in a process of its own. The memory of other tests would meanwhile be
/// taken for its own; a fork of theirs makes the next write to each page
/// a fault; and when it forks while they start threads, a lock of the standard
/// library's stays taken in the child, which then cannot start any. The
/// type of `test` tells the name of the function that it stands in.
pub fn alone<T: FnOnce()>(test: T) {
    const ALONE: &str = "TENURE_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let name = any::type_name::<T>();
    let name = name.split_once("::").unwrap().1;
    let name = name.split("::{{closure}}").next().unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
