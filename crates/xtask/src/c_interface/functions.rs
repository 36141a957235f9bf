//! The functions of the C interface have one list, in five places: the header, the version
//! script, the man pages of section 3, their examples, and tenure(7).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{HEADER, read};

const VERSION_SCRIPT: &str = "crates/tenure-c/tenure.map";
const PAGES: &str = "man";
const EXAMPLES: &str = "crates/tenure-c/examples/pages";
const OVERVIEW: &str = "man/tenure.7";
/// Where the threads that it names are started.
const SOURCES: [&str; 2] = ["crates/tenure/src", "crates/tenure-heap/src"];

type Names = BTreeSet<String>;

/// Compares the places below `root` with the header. Returns a line for each difference,
/// and for each thread that tenure(7) names and no source file starts.
pub fn mistakes(root: &Path) -> Result<Vec<String>> {
    let declared = declared(&read(&root.join(HEADER))?);
    let overview = read(&root.join(OVERVIEW))?;
    let places = [
        (VERSION_SCRIPT, exported(&read(&root.join(VERSION_SCRIPT))?)),
        (PAGES, stems(&root.join(PAGES), ".3")?),
        (EXAMPLES, stems(&root.join(EXAMPLES), ".c")?),
        (OVERVIEW, referenced(&overview)),
    ];
    let mut mistakes = Vec::new();
    for (place, names) in places {
        let missing = declared.difference(&names);
        mistakes.extend(missing.map(|name| format!("{place} lacks {name}, which is in {HEADER}")));
        let foreign = names.difference(&declared);
        mistakes
            .extend(foreign.map(|name| format!("{place} has {name}, which is not in {HEADER}")));
    }
    for thread in threads(&overview) {
        let name = format!("c\"{thread}\"");
        let is_started = |source| is_in_source(&root.join(source), &name);
        let sources: Vec<bool> = SOURCES.into_iter().map(is_started).collect::<Result<_>>()?;
        if !sources.contains(&true) {
            mistakes.push(format!(
                "{OVERVIEW} names the thread {thread}, which is not in the source"
            ));
        }
    }
    Ok(mistakes)
}

/// Returns the functions that a header declares, whatever their names.
fn declared(header: &str) -> Names {
    let starts_declaration =
        |line: &&str| line.starts_with(|c: char| c.is_ascii_alphabetic()) && line.contains('(');
    let declarations = header.lines().filter(starts_declaration);
    let name = |line: &str| {
        line.split('(')
            .next()?
            .rsplit([' ', '*'])
            .next()
            .map(str::to_owned)
    };
    declarations.filter_map(name).collect()
}

/// Returns the symbols that a version script exports.
fn exported(script: &str) -> Names {
    let symbols = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'));
    let is_name = |symbol: &&str| {
        symbol
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    symbols.filter(is_name).map(str::to_owned).collect()
}

/// Returns the names of a folder's files without their ending.
fn stems(folder: &Path, ending: &str) -> Result<Names> {
    let mut names = Names::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("reading {}", folder.display()))?
    {
        let name = entry?.file_name();
        names.extend(
            name.to_string_lossy()
                .strip_suffix(ending)
                .map(str::to_owned),
        );
    }
    Ok(names)
}

/// Returns the functions of tenure's that a page refers to with their section.
fn referenced(page: &str) -> Names {
    let names = page
        .split("\\fB")
        .filter_map(|rest| rest.split_once("\\fR(3)"));
    let ours = names.filter(|(name, _)| name.starts_with("tenure_"));
    ours.map(|(name, _)| name.to_owned()).collect()
}

/// Returns the threads that a page names.
fn threads(page: &str) -> Names {
    let words = page
        .split("\\fI")
        .filter_map(|rest| rest.split_once("\\fR"));
    let ours = words.filter(|(word, _)| word.starts_with("tenure\\-"));
    ours.map(|(word, _)| word.replace('\\', "")).collect()
}

fn is_in_source(folder: &Path, text: &str) -> Result<bool> {
    for entry in folder
        .read_dir()
        .with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        let found = if path.is_dir() {
            is_in_source(&path, text)?
        } else {
            read(&path)?.contains(text)
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn declared_foreign_function_is_included() {
        let header = "#include <stddef.h>\n/** f(x) */\nint tenure_f(int x,\n    int (*y)(void));\n\n\
                      const char *tenure_g(void);\nextern int pthread_x(int);\nstruct s {\n    int a;\n};\n\
                      #ifdef __cplusplus\nextern \"C\" {\n#endif\n";
        let names = ["pthread_x", "tenure_f", "tenure_g"].map(str::to_owned);
        assert_eq!(declared(header), Names::from(names));
    }

    fn interface(
        header: &str,
        script: &str,
        page: &str,
        example: &str,
        overview: &str,
    ) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            (HEADER, header),
            (VERSION_SCRIPT, script),
            (&format!("man/{page}.3"), ""),
            (&format!("{EXAMPLES}/{example}.c"), ""),
            (OVERVIEW, overview),
            ("crates/tenure/src/verbs/x.rs", "start(c\"tenure-x\")"),
            ("crates/tenure-heap/src/z.rs", "name(c\"tenure-z\")"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        mistakes(root.path()).unwrap()
    }

    #[test]
    fn mistakes_same_functions_everywhere_is_empty() {
        let script = "V {\nglobal:\n    tenure_f;\nlocal:\n    *;\n};\n";
        let overview =
            "\\fBtenure_f\\fR(3), \\fBmlock\\fR(2) \\fItenure\\-x\\fR \\fItenure\\-z\\fR";
        let found = interface(
            "int tenure_f(void);\n",
            script,
            "tenure_f",
            "tenure_f",
            overview,
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn mistakes_different_functions_name_both_places() {
        let script = "V {\nglobal:\n    tenure_g;\n};\n";
        let found = interface(
            "int tenure_f(void);\n",
            script,
            "tenure_f",
            "tenure_f",
            "\\fItenure\\-y\\fR",
        );
        assert_eq!(
            found,
            [
                "crates/tenure-c/tenure.map lacks tenure_f, which is in crates/tenure-c/include/tenure.h",
                "crates/tenure-c/tenure.map has tenure_g, which is not in crates/tenure-c/include/tenure.h",
                "man/tenure.7 lacks tenure_f, which is in crates/tenure-c/include/tenure.h",
                "man/tenure.7 names the thread tenure-y, which is not in the source",
            ]
        );
    }
}
