//! The figures that documentation states. In the source of generated text a `{NAME}`
//! stands for the constant of that name; hand-written text is compared with the constant.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tenure::{populate, release, volatile, volatile::Priority};
use tenure_heap::HeapOptions;

/// Hand-written text that states a figure: the figure, a word of the sentence that
/// states it (or "" in files that state the figure once), and the files.
const STATEMENTS: [(&str, &str, &[&str]); 13] = [
    (
        "POPULATE_BYTES_PER_THREAD",
        "each",
        &["crates/tenure/src/verbs/populate/options.rs"],
    ),
    (
        "POPULATE_CHUNK_DURATION",
        "",
        &["crates/tenure/src/verbs/populate/options.rs"],
    ),
    ("POPULATE_CHUNK_DURATION", "chunk", &["ARCHITECTURE.md"]),
    ("POPULATE_REPORT_EVERY", "", &["tests/c/populate_with.c"]),
    (
        "RELEASE_THRESHOLD",
        "",
        &[
            "crates/tenure/src/verbs/release/contents.rs",
            "crates/tenure/src/verbs/release/mod.rs",
            "crates/tenure-cli/src/doctor/checks/release.rs",
            "crates/tenure-options/src/table.rs",
        ],
    ),
    (
        "VOLATILE_OFFER_DELAY",
        "offer",
        &["crates/tenure/src/verbs/volatile/offer_thread/delay.rs"],
    ),
    (
        "VOLATILE_PRIORITY_DEFAULT",
        "unsigned priority",
        &["crates/tenure-c/include/tenure.hpp"],
    ),
    (
        "VOLATILE_PRIORITY_MAX",
        "last",
        &["crates/tenure-c/include/tenure.hpp"],
    ),
    (
        "VOLATILE_PRIORITY_MAX",
        "0 to",
        &["crates/tenure/src/verbs/volatile/priority.rs"],
    ),
    (
        "RELEASE_THRESHOLD",
        "less than",
        &["ARCHITECTURE.md", "README.md"],
    ),
    ("HEAP_MAX_DIRTY", "", &["crates/tenure-heap/src/options.rs"]),
    (
        "HEAP_DIRTY_DECAY",
        "dirty",
        &[
            "crates/tenure-heap/src/lib.rs",
            "crates/tenure-heap/src/options.rs",
        ],
    ),
    (
        "HEAP_MUZZY_DECAY",
        "muzzy",
        &[
            "crates/tenure-heap/src/lib.rs",
            "crates/tenure-heap/src/options.rs",
        ],
    ),
];

/// Returns the figures, each with the text of its constant.
fn figures() -> [(&'static str, String); 10] {
    let heap = HeapOptions::default();
    [
        (
            "POPULATE_BYTES_PER_THREAD",
            size_text(populate::BYTES_PER_THREAD),
        ),
        (
            "POPULATE_CHUNK_DURATION",
            duration_text(populate::CHUNK_DURATION),
        ),
        (
            "POPULATE_REPORT_EVERY",
            duration_text(populate::REPORT_INTERVAL),
        ),
        ("RELEASE_THRESHOLD", size_text(release::THRESHOLD_BYTES)),
        (
            "VOLATILE_OFFER_DELAY",
            duration_text(volatile::DEFAULT_DELAY),
        ),
        (
            "VOLATILE_PRIORITY_DEFAULT",
            Priority::default().as_u8().to_string(),
        ),
        (
            "VOLATILE_PRIORITY_MAX",
            (Priority::ALL.len() - 1).to_string(),
        ),
        ("HEAP_MAX_DIRTY", size_text(heap.max_dirty_bytes)),
        ("HEAP_DIRTY_DECAY", duration_text(heap.dirty_decay)),
        ("HEAP_MUZZY_DECAY", duration_text(heap.muzzy_decay)),
    ]
}

fn text_of(name: &str) -> Result<String> {
    let mut figures = figures().into_iter();
    let found = figures.find(|(known, _)| *known == name);
    Ok(found
        .with_context(|| format!("{{{name}}} is not in crates/xtask/src/figures.rs"))?
        .1)
}

/// Replaces each `{NAME}` of upper-case letters by the figure of that name.
pub fn fill(text: &str) -> Result<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let is_of_a_name = |c: char| c.is_ascii_uppercase() || c == '_';
        match after.split_once('}') {
            Some((name, after)) if !name.is_empty() && name.chars().all(is_of_a_name) => {
                filled.push_str(&text_of(name)?);
                rest = after;
            }
            _ => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Compares the hand-written text below `root` with the constants. Returns a line for each
/// statement that does not hold.
pub fn mistakes(root: &Path) -> Result<Vec<String>> {
    let mut mistakes = Vec::new();
    for (name, word, files) in STATEMENTS {
        let figure = text_of(name)?;
        for file in files {
            let text = fs::read_to_string(root.join(file));
            let text = text.with_context(|| format!("reading {file} (for {name})"))?;
            if !states(&text, word, &figure) {
                let where_ = match word {
                    "" => String::new(),
                    word => format!(" in a sentence with {word:?}"),
                };
                mistakes.push(format!(
                    "{file} does not state {name}, {figure}{where_}: mend it, or the list in \
                     crates/xtask/src/figures.rs"
                ));
            }
        }
    }
    Ok(mistakes)
}

/// Whether a sentence of the text has both the word and the figure.
fn states(text: &str, word: &str, figure: &str) -> bool {
    let is_marker = |word: &&str| !["//", "///", "//!", "*", "/*", "\\"].contains(word);
    let words: Vec<&str> = text.split_whitespace().filter(is_marker).collect();
    let text = words.join(" ");
    text.split(". ")
        .any(|sentence| sentence.contains(word) && contains_figure(sentence, figure))
}

/// Whether the text has the figure, and not as a part of another.
fn contains_figure(text: &str, figure: &str) -> bool {
    text.match_indices(figure).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + figure.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || ".,".contains(c))
            && !after.is_some_and(char::is_alphanumeric)
    })
}

/// Returns a size in the largest unit that divides it.
pub fn size_text(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS
        .iter()
        .find(|&&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit))
    {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Returns a duration in seconds if they are whole, else in milliseconds.
fn duration_text(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        millis => format!("{millis} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_known_name_becomes_figure() {
        let text = "one for each {POPULATE_BYTES_PER_THREAD}, {}, {x}, { and }";
        let size = size_text(populate::BYTES_PER_THREAD);
        let filled = format!("one for each {size}, {{}}, {{x}}, {{ and }}");
        assert_eq!(fill(text).unwrap(), filled);
    }

    #[test]
    fn fill_unknown_name_is_error() {
        assert!(fill("{NO_SUCH_FIGURE}").is_err());
    }

    #[test]
    fn states_figure_split_over_comment_lines_is_found() {
        let text = "/// Other. At most one for each 16\n    /// MiB begun. More.";
        assert!(states(text, "each", "16 MiB"));
        assert!(states(text, "", "16 MiB"));
        assert!(!states(text, "More", "16 MiB"));
        assert!(!states(text, "each", "6 MiB"));
        assert!(!states(text, "each", "64 MiB"));
    }

    #[test]
    fn mistakes_missing_file_is_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(mistakes(root.path()).is_err());
    }

    #[test]
    fn mistakes_wrong_figures_are_listed_with_their_files() {
        let root = tempfile::tempdir().unwrap();
        let files = STATEMENTS.iter().flat_map(|(_, _, files)| *files);
        let mut count = 0;
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "One for each 77 MiB.").unwrap();
            count += 1;
        }
        let mistakes = mistakes(root.path()).unwrap();
        assert_eq!(mistakes.len(), count);
        assert!(mistakes[0].starts_with("crates/tenure/src/verbs/populate/options.rs does not"));
    }

    #[test]
    fn size_text_uses_largest_dividing_unit() {
        assert_eq!(size_text(1), "1");
        assert_eq!(size_text(64 << 10), "64 KiB");
        assert_eq!(size_text(4 << 30), "4 GiB");
    }

    #[test]
    fn duration_text_uses_seconds_only_if_whole() {
        assert_eq!(duration_text(Duration::from_millis(100)), "100 ms");
        assert_eq!(duration_text(Duration::from_secs(10)), "10 s");
    }
}
