//! The C header and the man pages of section 3, from the source of tenure-c.

mod functions;
mod header;
mod page;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use self::source::Interface;
use crate::figures;

pub use self::functions::mistakes;

/// The source files, in the order of the header.
const SOURCES: [&str; 10] = [
    "lib",
    "populate",
    "lock",
    "mmap",
    "lazy_free",
    "volatile",
    "release",
    "cache",
    "pool",
    "stats",
];

/// The header, below the root.
const HEADER: &str = "crates/tenure-c/include/tenure.h";

/// Makes the files, with their paths below `root`.
pub fn files(root: &Path, version: &str) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = root.join("crates/tenure-c");
    let sources: Vec<PathBuf> = SOURCES
        .iter()
        .map(|name| folder.join(format!("src/{name}.rs")))
        .collect();
    let mut interface = Interface::default();
    for source in &sources {
        interface.read(&read(source)?)?;
    }
    // cbindgen follows the modules by itself.
    let header = figures::fill(&header::make(&sources[0])?)?;
    let mut files = Vec::new();
    for function in &interface.functions {
        let example = folder.join(format!("examples/pages/{}.c", function.name));
        let page = page::make(&interface, function, &header, &read(&example)?, version)
            .with_context(|| format!("the page of {}", function.name))?;
        files.push((format!("man/{}.3", function.name).into(), page.into_bytes()));
    }
    files.push((HEADER.into(), header.into_bytes()));
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
