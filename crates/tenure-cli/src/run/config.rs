//! The file of options that `--config` names.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tenure_options::{Kind, OptionRow, TABLE};

type Setting = (&'static OptionRow, OsString);

/// Reads the options of a file.
///
/// # Errors
///
/// A line with the file, the line's number, and what is wrong with it.
pub(super) fn read(file: &Path) -> Result<Vec<Setting>, String> {
    let shown = file.display();
    let bytes = read_bounded(file).map_err(|error| format!("{shown}: {error}"))?;
    parse(&bytes).map_err(|(line, message)| format!("{shown}:{line}: {message}"))
}

/// Reads a file that may be anything.
fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    const MAX_BYTES: u64 = 1 << 20;
    let mut bytes = Vec::new();
    File::open(file)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(
            "is larger than 1 MiB, which no options are",
        ));
    }
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Vec<Setting>, (usize, String)> {
    // Each with the number of its line.
    let mut settings: Vec<(usize, Setting)> = Vec::new();
    // Editors of other systems begin a file with U+FEFF.
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let setting = match setting(line) {
            Ok(None) => continue,
            Ok(Some(setting)) => setting,
            Err(message) => return Err((number, message)),
        };
        let same = |(_, (row, _)): &&(usize, Setting)| *row == setting.0;
        if let Some((first, (row, _))) = settings.iter().find(same) {
            let message = format!("{} is set twice, first in line {first}", row.flag);
            return Err((number, message));
        }
        settings.push((number, setting));
    }
    Ok(settings.into_iter().map(|(_, setting)| setting).collect())
}

/// Reads a line; `None` if there is no option in it.
fn setting(line: &[u8]) -> Result<Option<Setting>, String> {
    let line = str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (line, None),
    };
    let row = TABLE.iter().find(|row| row.flag == name);
    let row = row.ok_or_else(|| unknown(name))?;
    let value = match (value, row.kind) {
        (Some(value), _) => value,
        (None, Kind::Switch) => "1",
        (None, Kind::Word(word)) => return Err(format!("{name} needs a value: {name} = {word}")),
        (None, _) => return Err(format!("{name} needs a value: {name} = {}", row.default)),
    };
    row.check(value)
        .map_err(|error| format!("{name} = {}: {error}", shortened(value)))?;
    Ok(Some((row, value.into())))
}

/// Returns text for a message, of which a line of a file may be long.
fn shortened(text: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 60;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

fn unknown(name: &str) -> String {
    let name = shortened(name);
    let mut message = match name.strip_prefix("--") {
        Some(_) => format!("options have no dashes here: {name}"),
        None => format!("there is no option {name}; there are"),
    };
    if !name.starts_with("--") {
        for (index, row) in TABLE.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(message, "{comma} {}", row.flag);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Vec<(&'static str, OsString)>, (usize, String)> {
        let settings = parse(text.as_bytes())?.into_iter();
        Ok(settings.map(|(row, value)| (row.flag, value)).collect())
    }

    #[test]
    fn file_has_options_comments_and_empty_lines() {
        let text = "# For the index.\n\nheap\n  munmap=background\r\n\
                    heap-muzzy-decay =  0\n\t# heap = 0\nstats = 0\npopulate = off";
        let wanted = [
            ("heap", "1".into()),
            ("munmap", "background".into()),
            ("heap-muzzy-decay", "0".into()),
            ("stats", "0".into()),
            ("populate", "off".into()),
        ];
        assert_eq!(settings(text).unwrap(), wanted);
        assert_eq!(settings("").unwrap(), []);
    }

    #[test]
    fn byte_order_mark_is_no_part_of_the_first_option() {
        assert_eq!(settings("\u{feff}heap\n").unwrap(), [("heap", "1".into())]);
        assert!(settings("heap\n\u{feff}stats\n").is_err());
    }

    #[test]
    fn endless_file_is_an_error() {
        let message = read(Path::new("/dev/zero")).unwrap_err();
        let expected = "/dev/zero: is larger than 1 MiB, which no options are";
        assert_eq!(message, expected);
    }

    #[test]
    fn wrong_line_is_an_error_with_its_number() {
        for (text, line, words) in [
            (
                "heap\nheep\n",
                2,
                "there is no option heep; there are heap, ",
            ),
            ("--heap", 1, "options have no dashes here"),
            (
                "\n\nmunmap\n",
                3,
                "munmap needs a value: munmap = background",
            ),
            ("heap-threshold", 1, "needs a value: heap-threshold = 0"),
            ("heap = yes", 1, "heap = yes: give 1 or 0"),
            ("populate = 1.5", 1, "a fraction needs a unit"),
            ("heap =", 1, "give 1 or 0"),
            ("heap # quick", 1, "there is no option heap # quick"),
            ("heap\nstats\nheap = 0", 3, "set twice, first in line 1"),
        ] {
            let (number, message) = settings(text).unwrap_err();
            assert_eq!(number, line, "{text}");
            assert!(message.contains(words), "{message}");
        }
        for long in [
            "a".repeat(1 << 19),
            format!("--{}", "é".repeat(1 << 18)),
            format!("populate = {}", "9".repeat(1 << 19)),
        ] {
            let (_, message) = settings(&long).unwrap_err();
            assert!(message.len() < 1000 && message.contains('…'), "{message}");
        }
        let (number, message) = parse(b"heap\n\xff\n").unwrap_err();
        assert_eq!((number, message.as_str()), (2, "the line is not UTF-8"));
    }
}
