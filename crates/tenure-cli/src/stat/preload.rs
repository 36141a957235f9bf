//! The preloaded library in a process, and the options that it was started with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tenure_options::{Kind, OptionRow, TABLE};

use super::process::folder_with_memory;

const LIBRARY_STEM: &str = "libtenure_preload.so";

/// The traces of `tenure run` in a process. The options are those of the environment that it was
/// started with; what it has changed there since counts for its children only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Preload {
    /// The file of the library, if that is mapped.
    #[serde(rename = "library")]
    pub mapped: Option<PathBuf>,
    /// The options that are on, as flags of `tenure run` without their dashes.
    pub options: Vec<String>,
    /// The variables of options whose values the library ignores.
    pub invalid: Vec<String>,
    /// Why one of them is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Preload {
    /// Reads `/proc/PID/maps` and `/proc/PID/environ`.
    pub fn of_process(pid: u32) -> Self {
        let folder = folder_with_memory(pid);
        let read = |name| fs::read(folder.join(name));
        match read("maps").and_then(|maps| Ok((maps, read("environ")?))) {
            Ok((maps, environment)) => Self::from_files(&maps, &environment),
            Err(error) => Self {
                error: Some(error.to_string()),
                ..Self::default()
            },
        }
    }

    /// Returns whether the process could be read.
    pub fn is_known(&self) -> bool {
        self.error.is_none()
    }

    fn from_files(maps: &[u8], environment: &[u8]) -> Self {
        let mut preload = Self {
            mapped: library_in(maps),
            ..Self::default()
        };
        for row in &TABLE {
            let Some(value) = value_in(environment, row) else {
                continue;
            };
            match row.check(value) {
                Err(_) => preload.invalid.push(format!("{}={value}", row.variable)),
                Ok(()) if row.kind != Kind::Switch => {
                    preload.options.push(format!("{}={value}", row.flag));
                }
                Ok(()) if value == "1" => preload.options.push(row.flag.to_owned()),
                Ok(()) => {}
            }
        }
        preload
    }

    /// Returns the answer in words; `None` where nothing could be read.
    pub fn text(&self) -> Option<String> {
        if !self.is_known() {
            return None;
        }
        let options = match self.options.as_slice() {
            [] => "no options".to_owned(),
            options => options.join(", "),
        };
        let mut text = match &self.mapped {
            Some(library) => format!("{options}; {} is mapped", library.display()),
            None if self.options.is_empty() => format!("{LIBRARY_STEM} is not mapped"),
            None => format!(
                "{LIBRARY_STEM} is not mapped, although the environment has options: {options}"
            ),
        };
        if !self.invalid.is_empty() {
            text += &format!("; ignored: {}", self.invalid.join(", "));
        }
        Some(text)
    }
}

/// Returns the value of the option's variable, if it is set; the library ignores an empty
/// one.
fn value_in<'a>(environment: &'a [u8], row: &OptionRow) -> Option<&'a str> {
    let variables = environment.split(|&byte| byte == 0);
    let mut values = variables.filter_map(|variable| {
        let value = variable.strip_prefix(row.variable.as_bytes())?;
        value.strip_prefix(b"=")
    });
    let value = values.next().filter(|value| !value.is_empty())?;
    // No option accepts other text.
    Some(str::from_utf8(value).unwrap_or("?"))
}

/// Returns the file of the library, of whatever version, in the lines of `maps`.
fn library_in(maps: &[u8]) -> Option<PathBuf> {
    let lines = maps.split(|&byte| byte == b'\n');
    let mut files = lines.filter_map(|line| {
        let at = line.iter().position(|&byte| byte == b'/')?;
        let file = String::from_utf8_lossy(&line[at..]).into_owned();
        let name = Path::new(&file).file_name()?.to_str()?;
        name.starts_with(LIBRARY_STEM).then(|| PathBuf::from(&file))
    });
    files.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 7   /usr/bin/sleep
7f0000000000-7f0000001000 r-xp 00000000 08:01 9   /opt/my lib/libtenure_preload.so.0 (deleted)
";

    fn text(maps: &str, environment: &[&str]) -> String {
        let environment = environment.join("\0");
        let preload = Preload::from_files(maps.as_bytes(), environment.as_bytes());
        preload.text().unwrap()
    }

    #[test]
    fn options_of_mapped_library_are_named() {
        let environment = ["A=1", "TENURE_HEAP=1", "TENURE_MUNMAP=background", "B="];
        let file = "/opt/my lib/libtenure_preload.so.0 (deleted)";
        assert_eq!(
            text(MAPS, &environment),
            format!("heap, munmap=background; {file} is mapped")
        );
        let none = text(MAPS, &["TENURE_HEAP=0", "TENURE_LOCK="]);
        assert_eq!(none, format!("no options; {file} is mapped"));
    }

    #[test]
    fn missing_library_is_named_whatever_the_environment_says() {
        assert_eq!(text("", &["A=1"]), "libtenure_preload.so is not mapped");
        assert_eq!(
            text("", &["TENURE_POPULATE=1G"]),
            "libtenure_preload.so is not mapped, although the environment has options: populate=1G"
        );
    }

    #[test]
    fn invalid_values_are_ignored_by_name() {
        let told = text(MAPS, &["TENURE_LOCK=now", "TENURE_HEAP=1"]);
        assert!(told.starts_with("heap; "), "{told}");
        assert!(told.ends_with("; ignored: TENURE_LOCK=now"), "{told}");
    }

    #[test]
    fn unreadable_process_has_no_answer() {
        let preload = Preload::of_process(u32::MAX >> 1);
        assert!(preload.error.is_some());
        assert_eq!(preload.text(), None);
    }
}
