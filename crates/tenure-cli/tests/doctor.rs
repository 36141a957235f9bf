//! `tenure doctor` as a script sees it.

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

fn json(without: &str) -> (i32, Value) {
    let mut doctor = cargo_bin_cmd!("tenure");
    doctor.args(["doctor", "--json"]);
    let assert = doctor.env("TENURE_WITHOUT", without).assert();
    let output = assert.get_output();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let report = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), report)
}

#[test]
fn exit_status_is_3_unless_all_checks_are_ok() {
    let (code, report) = json("");
    let checks = report["checks"].as_array().unwrap();
    let all_ok = checks.iter().all(|check| check["status"] == "ok");
    assert_eq!(report["everything_is_there"], all_ok);
    assert_eq!(code, if all_ok { 0 } else { 3 });
    assert_eq!(report["tenure_version"], env!("CARGO_PKG_VERSION"));
    for check in checks {
        for field in ["verb", "name", "found", "effect"] {
            assert!(
                check[field].as_str().is_some_and(|text| !text.is_empty()),
                "{check}"
            );
        }
        assert!(
            check["status"] == "ok" || check["remedy"].is_string(),
            "{check}"
        );
    }
}

#[test]
fn features_in_tenure_without_are_missing() {
    let (code, report) = json("userfaultfd,memfd_secret");
    assert_eq!(code, 3);
    for name in ["userfaultfd", "memfd_secret"] {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["status"], "missing", "{check}");
        let remedy = check["remedy"].as_str().unwrap();
        assert!(remedy.contains("TENURE_WITHOUT"), "{check}");
    }
}

#[test]
fn text_names_the_checks_of_the_json() {
    let mut doctor = cargo_bin_cmd!("tenure");
    doctor.arg("doctor").env("TENURE_WITHOUT", "userfaultfd");
    let assert = doctor.assert().code(3).stderr("");
    let text = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
    let (_, report) = json("userfaultfd");
    for check in report["checks"].as_array().unwrap() {
        let name = check["name"].as_str().unwrap();
        assert!(text.contains(name), "{name}\n{text}");
    }
    // Line breaks depend on the width.
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert!(
        text.contains("tenure purges it under memory pressure"),
        "{text}"
    );
}

#[test]
fn wrong_command_line_exits_with_2_and_help_names_3() {
    cargo_bin_cmd!("tenure")
        .args(["doctor", "--no"])
        .assert()
        .code(2);
    let assert = cargo_bin_cmd!("tenure")
        .args(["doctor", "--help"])
        .assert()
        .code(0);
    let help = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
    assert!(
        help.contains("3  something is missing or limited"),
        "{help}"
    );
}
