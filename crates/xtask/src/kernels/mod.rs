//! Results of the tests on Debian's kernels (tests/kernels): read from the output of
//! the virtual machines, recorded, and shown in docs/KERNELS.md.

mod document;
mod log;
mod record;
mod summary;
mod verbs;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

pub use document::document;
use record::Boot;

/// The folder of the recorded results, below the root.
const RESULTS: &str = "tests/kernels/results";

/// Records `logs`, one `.log` for each boot, and makes docs/KERNELS.md again. Results
/// of programs that did not run stay recorded if kernel and configuration are the same.
/// Returns whether every test has passed or was skipped with a reason.
pub fn record(root: &Path, logs: &[PathBuf]) -> Result<bool> {
    let mut all_passed = true;
    for path in logs {
        // There is no log if the machine could not start.
        let text = fs::read(path).unwrap_or_default();
        let mut boot = log::read(&String::from_utf8_lossy(&text));
        // The log of a machine that has not booted is empty: the record of an earlier boot is
        // that of a machine which no longer boots.
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let to = root.join(RESULTS).join(format!("{name}.json"));
        if boot.configuration.replace('/', "-") != name {
            println!("{name}: the machine has not booted, or its log begins with other lines");
            all_passed = false;
            if !to.exists() {
                continue;
            }
            boot = Boot {
                complete: false,
                ..read(&to)?
            };
        }
        for failure in boot.failures() {
            println!("{}: {failure}", boot.configuration);
            all_passed = false;
        }
        if to.exists() {
            boot.keep(read(&to)?);
        }
        let json = serde_json::to_string_pretty(&boot)? + "\n";
        fs::create_dir_all(root.join(RESULTS))
            .and_then(|()| fs::write(&to, json))
            .with_context(|| format!("writing {}", to.display()))?;
    }
    let path = root.join("docs/KERNELS.md");
    fs::write(&path, document(root)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(all_passed)
}

/// Reads all recorded boots, in the order in which the document shows them.
fn recorded(root: &Path) -> Result<Vec<Boot>> {
    let folder = root.join(RESULTS);
    let mut boots = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("json")) {
            continue;
        }
        boots.push(read(&path)?);
    }
    if boots.is_empty() {
        bail!(
            "nothing is recorded in {}: make test-kernels",
            folder.display()
        );
    }
    boots.sort_by_key(Boot::place);
    Ok(boots)
}

fn read(path: &Path) -> Result<Boot> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_that_has_not_booted_is_a_failure() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("docs")).unwrap();
        let logs = [root.path().join("6.1-root.log")];
        let text = "@configuration 6.1/root\n@begin_doctor\n{\"checks\": []}\n@end_doctor\n\
                    @begin lock\ntest result: ok. 7 passed; 0 failed; \
                    0 ignored;\n@end lock 0 1\n@done";
        fs::write(&logs[0], text).unwrap();
        assert!(record(root.path(), &logs).unwrap());
        let shown = || fs::read_to_string(root.path().join("docs/KERNELS.md")).unwrap();
        assert!(shown().contains("| lock | works |"), "{}", shown());
        // Whether its log is empty, of another machine, or missing.
        fs::write(&logs[0], "").unwrap();
        assert!(!record(root.path(), &logs).unwrap());
        assert!(shown().contains("| lock | **unfinished** |"), "{}", shown());
        fs::write(&logs[0], text.replace("6.1/root", "6.1/roo")).unwrap();
        assert!(!record(root.path(), &logs).unwrap());
        fs::remove_file(&logs[0]).unwrap();
        assert!(!record(root.path(), &logs).unwrap());
        let recorded = fs::read_dir(root.path().join(RESULTS)).unwrap();
        assert_eq!(recorded.count(), 1);
    }

    #[test]
    fn recorded_boot_is_in_results_and_document() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("docs")).unwrap();
        let log = root.path().join("6.1-root.log");
        let write = |program: &str| {
            let said = "running 7 tests\ntest result: ok. 7 passed; 0 failed; 0 ignored;";
            let text = format!(
                "@configuration 6.1/root\n@begin_doctor\n{{\"checks\": []}}\n@end_doctor\n\
                 @begin {program}\n{said}\n@end {program} 0 1\n@done"
            );
            fs::write(&log, text).unwrap();
        };
        let logs = [log.clone()];
        for program in ["lock", "mapping"] {
            write(program);
            assert!(record(root.path(), &logs).unwrap());
        }
        assert!(root.path().join(RESULTS).join("6.1-root.json").exists());
        let shown = fs::read_to_string(root.path().join("docs/KERNELS.md")).unwrap();
        assert_eq!(shown, document(root.path()).unwrap());
        assert!(
            shown.contains("| lock | 7 |\n| mapping | 7 |\n| all | 14 |\n"),
            "{shown}"
        );
    }
}
