//! Tests that nothing else of this process may disturb.

use std::{env, process::Command};

/// Runs a test in a process of its own. What other tests have in memory meanwhile
/// would be taken for its own; a fork of theirs makes the next write to each page
/// a fault; and when it forks while they start threads, a lock of the standard
/// library's stays taken in the child, which then cannot start any. `name` is the
/// test's whole name, without the crate's.
pub fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "TENURE_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
