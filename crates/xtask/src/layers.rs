//! The layers of a crate: each imports only from those below it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// The sources of a crate, and its layers from the ground up: each is a folder, or a
/// file, in them. Some have no content yet.
const CRATES: [(&str, &[&str]); 2] = [
    (
        "crates/tenure/src",
        &["ground", "observation", "background", "verbs", "ready"],
    ),
    (
        "crates/tenure-bench/src",
        &[
            "record",
            "text",
            "table",
            "library",
            "machine",
            "measure",
            "worker",
            "present",
            "arguments",
            "budget",
            "report",
            "experiments",
            "run",
        ],
    ),
];

/// Checks the crates below `root`. Returns whether all is well.
pub fn run(root: &Path) -> Result<bool> {
    let mut is_clean = true;
    for (source, layers) in CRATES {
        for violation in violations(&root.join(source), layers)? {
            println!("{violation}");
            is_clean = false;
        }
    }
    Ok(is_clean)
}

fn violations(source: &Path, layers: &[&str]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (layer, name) in layers.iter().enumerate() {
        for path in rust_files(&source.join(name))? {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            for (line, upper) in upward_uses(&text, &layers[layer + 1..]) {
                let path = path.display();
                found.push(format!(
                    "{path}:{line}: {name} uses {upper}, which is above it"
                ));
            }
        }
    }
    Ok(found)
}

/// Returns `folder`.rs and all Rust files in `folder`, sorted.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    files.extend(Some(folder.with_extension("rs")).filter(|file| file.is_file()));
    if folder.is_dir() {
        let entries = fs::read_dir(folder).with_context(|| format!("in {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                files.extend(rust_files(&path)?);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Finds, with their line numbers, those of the layers `above` that `text` names: as `crate::verbs`, or in the braces of a `use crate::{...}`. Comments may name
/// what they like.
fn upward_uses<'a>(text: &str, above: &[&'a str]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    // How deep we are in the braces of a `use crate::{`.
    let mut depth = 0;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        let mut note = |name: &str| {
            let upper = above.iter().find(|upper| **upper == name);
            found.extend(upper.map(|upper| (index + 1, *upper)));
        };
        let mut rest = code;
        while !rest.is_empty() {
            if depth == 0 {
                let Some(at) = rest.find("crate::") else {
                    break;
                };
                // Not the end of another path, such as `other_crate::`.
                let is_path_start =
                    !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                rest = &rest[at + "crate::".len()..];
                if is_path_start && rest.starts_with('{') {
                    depth = 1;
                    rest = &rest[1..];
                } else if is_path_start {
                    note(leading_word(rest));
                }
                continue;
            }
            if depth == 1 {
                note(leading_word(rest.trim_start()));
            }
            // On to the next item of this brace, or out of it.
            match rest.find(['{', '}', ',']) {
                None => rest = "",
                Some(at) => {
                    match rest.as_bytes()[at] {
                        b'{' => depth += 1,
                        b'}' => depth -= 1,
                        _ => {}
                    }
                    rest = &rest[at + 1..];
                }
            }
        }
    }
    found
}

fn leading_word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &[&str] = CRATES[0].1;
    const ABOVE_GROUND: &[&str] = &["observation", "background", "verbs", "ready"];
    const ABOVE_VERBS: &[&str] = &["ready"];

    #[test]
    fn upward_use_is_found_with_file_and_line() {
        let source = tempfile::tempdir().unwrap();
        let folder = source.path().join("ground/sys");
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("map.rs"),
            "use std::io;\nuse crate::verbs::lock;\n",
        )
        .unwrap();
        fs::create_dir(source.path().join("verbs")).unwrap();
        fs::write(
            source.path().join("verbs/lock.rs"),
            "use crate::ground::range;\n",
        )
        .unwrap();
        let violations = violations(source.path(), LAYERS).unwrap();
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(
            violations[0].ends_with("ground/sys/map.rs:2: ground uses verbs, which is above it")
        );
    }

    #[test]
    fn a_layer_may_be_a_single_file() {
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("background.rs"), "use crate::ready;\n").unwrap();
        assert_eq!(violations(source.path(), LAYERS).unwrap().len(), 1);
    }

    #[test]
    fn downward_use_is_allowed() {
        let text = "use crate::ground::{error, verbs};\nuse crate::{background, ground::range};\n";
        assert_eq!(upward_uses(text, ABOVE_VERBS), []);
    }

    #[test]
    fn upward_use_in_nested_braces_is_found() {
        let text = "use crate::{\n    ground::{self, verbs},\n    ready::Cache,\n};\nfn f() {}\n";
        assert_eq!(upward_uses(text, ABOVE_VERBS), [(3, "ready")]);
        assert_eq!(
            upward_uses("use crate::{ground, verbs};", ABOVE_GROUND),
            [(1, "verbs")]
        );
    }

    #[test]
    fn upward_full_path_is_found_and_comment_is_not() {
        assert_eq!(
            upward_uses("    crate::verbs::forget(range);", ABOVE_GROUND),
            [(1, "verbs")]
        );
        assert_eq!(upward_uses("//! See [`crate::verbs`].", ABOVE_GROUND), []);
        assert_eq!(upward_uses("my_crate::verbs::go();", ABOVE_GROUND), []);
        assert_eq!(upward_uses("use crate::verbs_of_old;", ABOVE_GROUND), []);
    }
}
