//! The terms: retired names are not used, and comments have subjects.

use std::{fs, io::ErrorKind, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

/// The list of retired names. It lies outside the folders that are searched.
const LIST: &str = "tests/terms/retired.tsv";

/// The searched paths, as git pathspecs.
const SEARCHED: [&str; 9] = [
    "crates",
    "man",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Makefile",
];

/// How many comment lines may begin a sentence with a headless "Who" or "What".
const MAX_HEADLESS: usize = 24;

/// A retired name: what it is found by, and what to write instead.
struct Retired {
    pattern: Regex,
    instead: String,
    folder: String,
}

/// Checks the files below `root` that git knows. Returns whether all is well.
pub fn run(root: &Path) -> Result<bool> {
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let retired = parse(&list)?;
    let headless = headless()?;
    let (mut is_clean, mut headless_lines) = (true, Vec::new());
    for path in files(root)? {
        let bytes = match fs::read(root.join(&path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            bytes => bytes.with_context(|| format!("reading {path}"))?,
        };
        // A file may hold a byte that is no text, such as a fuzzer's input.
        let text = String::from_utf8_lossy(&bytes);
        for (number, line) in text.lines().enumerate() {
            let place = format!("{path}:{}", number + 1);
            for name in violations(&retired, &path, line) {
                println!("{place}: write {} in: {}", name.instead, line.trim());
                is_clean = false;
            }
            if path.ends_with(".rs") && headless.is_match(line) {
                headless_lines.push(format!("{place}: {}", line.trim()));
            }
        }
    }
    if headless_lines.len() > MAX_HEADLESS {
        println!("{}", headless_lines.join("\n"));
        println!(
            "{} comments begin a sentence without a subject; at most {MAX_HEADLESS} may",
            headless_lines.len()
        );
        is_clean = false;
    }
    Ok(is_clean)
}

fn parse(list: &str) -> Result<Vec<Retired>> {
    let lines = list.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let place = || format!("{LIST}:{}", number + 1);
            ensure!(!line.trim().is_empty(), "{}: the line is empty", place());
            let mut fields = line.split('\t');
            let pattern = fields.next().unwrap_or_default();
            let instead = fields.next();
            Ok(Retired {
                pattern: Regex::new(pattern).with_context(place)?,
                instead: instead
                    .with_context(|| format!("{}: nothing to write instead: {line}", place()))?
                    .to_owned(),
                folder: fields.next().unwrap_or_default().to_owned(),
            })
        })
        .collect()
}

fn violations<'a>(
    retired: &'a [Retired],
    path: &'a str,
    line: &'a str,
) -> impl Iterator<Item = &'a Retired> {
    let applies = move |name: &&Retired| path.starts_with(&name.folder);
    let all = retired.iter().filter(applies);
    all.filter(move |name| name.pattern.is_match(line))
}

/// A comment in which a statement begins with "Who" or "What"; questions may.
fn headless() -> Result<Regex> {
    Ok(Regex::new(
        r"^\s*//[/!]?\s+([^?]*[.:;] )?(Who|What)(ever)? [a-z][^?]*$",
    )?)
}

/// The files that git knows below what is searched.
fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    let git = git.current_dir(root).args(["ls-files", "-z", "--"]);
    let output = git.args(SEARCHED).output().context("starting git")?;
    ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout)?;
    let names = names.split('\0').filter(|name| !name.is_empty());
    let names: Vec<_> = names.map(str::to_owned).collect();
    ensure!(!names.is_empty(), "git knows no file to search");
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_name_in_its_folder_is_found() {
        let retired = parse("# comment\n\\bsquad\\b\tworkers\n\\bTally\\b\tCounts\ta/b\n").unwrap();
        let found = |path, line| violations(&retired, path, line).count();
        assert_eq!(found("docs/x.md", "the squad of"), 1);
        assert_eq!(found("docs/x.md", "the ssquads of a Tally"), 0);
        assert_eq!(found("a/b/c.rs", "struct Tally;"), 1);
    }

    #[test]
    fn list_without_replacement_is_an_error() {
        assert!(parse("\\bsquad\\b\n").is_err());
        assert!(parse("(\tworkers\n").is_err());
    }

    #[test]
    fn empty_line_of_the_list_is_named() {
        let error = parse("# comment\n\\bsquad\\b\tworkers\n\n").err().unwrap();
        let expected = format!("{LIST}:3: the line is empty");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn file_that_is_not_utf_8_is_searched() {
        let root = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            let status = git.current_dir(root.path()).args(arguments).status();
            assert!(status.unwrap().success());
        };
        for folder in ["tests/terms", "docs"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join(LIST), "\\bsquad\\b\tworkers\n").unwrap();
        let write = |bytes: &[u8]| fs::write(root.path().join("docs/x.bin"), bytes).unwrap();
        write(b"\xff\nthe workers\n");
        git(&["init", "--quiet"]);
        assert!(run(root.path()).is_err(), "git knows no file yet");
        git(&["add", "."]);
        assert!(run(root.path()).unwrap());
        write(b"\xff\nthe squad\n");
        assert!(!run(root.path()).unwrap());
    }

    #[test]
    fn headless_statement_is_found_and_question_is_not() {
        let headless = headless().unwrap();
        for found in [
            "// Who frees it waits.",
            "/// Takes it. What is locked stays",
        ] {
            assert!(headless.is_match(found), "{found}");
        }
        for fine in [
            "// What is mapped there?",
            "// The caller knows what it wants.",
            "let x = 1;",
        ] {
            assert!(!headless.is_match(fine), "{fine}");
        }
    }
}
