//! The allocators that are compared: those that are installed, and tenure's heap.

use std::{ffi::OsStr, path::Path};

use anyhow::{Context as _, Result};

use crate::library;
use crate::worker::job::Served;
use crate::worker::{Environment, Worker};

pub const GLIBC: &str = "glibc";
pub const MMAP_ALWAYS: &str = "glibc, mmap always";
pub const TENURE: &str = "tenure";

/// Others, and the names under which the dynamic loader knows them.
const OTHERS: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2"]),
    ("mimalloc", &["libmimalloc.so.2", "libmimalloc.so.3"]),
    (
        "tcmalloc",
        &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
    ),
];
/// A threshold that was set stays where it is: each block from there on is mapped, and
/// unmapped when it is freed.
const MMAP_FROM: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072");
pub const HEAP: (&str, &str) = ("TENURE_HEAP", "1");
const EXIT: (&str, &str) = ("TENURE_EXIT", "background");

/// A malloc, and the environment in which a program gets it.
#[derive(Clone, Debug)]
pub struct Allocator {
    pub name: &'static str,
    pub environment: Environment,
}

impl Allocator {
    fn glibc(name: &'static str) -> Self {
        let environment = Environment::new();
        Self { name, environment }
    }

    pub fn preloaded(name: &'static str, library: impl AsRef<OsStr>) -> Self {
        Self::glibc(name).with(("LD_PRELOAD", library))
    }

    pub fn with(mut self, (variable, value): (&'static str, impl AsRef<OsStr>)) -> Self {
        self.environment.push((variable, value.as_ref().into()));
        self
    }

    /// Asks a worker what serves its malloc; `None` when the library cannot be loaded.
    fn served(&self) -> Result<Option<Served>> {
        let served = Worker::served(&self.environment).context(self.name)?;
        Ok(served.is_loaded.then_some(served))
    }
}

/// The allocators that were found.
#[derive(Default)]
pub struct Allocators {
    /// The C library's, others, and tenure's at the end.
    pub all: Vec<Allocator>,
    /// The environment of the C library's malloc with tenure's tear-down.
    pub background_exit: Option<Environment>,
    versions: Vec<String>,
    missing: Vec<String>,
}

impl Allocators {
    /// Looks for all.
    pub fn find() -> Result<Self> {
        let mut found = Self::default();
        found.add([Allocator::glibc(GLIBC)])?;
        let mmap_always = Allocator::glibc(MMAP_ALWAYS).with(MMAP_FROM);
        found.all.push(mmap_always);
        for (name, libraries) in OTHERS {
            let preloaded = |library| Allocator::preloaded(name, library);
            if !found.add(libraries.iter().map(preloaded))? {
                found.miss(name, libraries[0]);
            }
        }
        match library::find() {
            Ok(file) => found.add_tenure(&file)?,
            Err(why) => found.miss(TENURE, &format!("{why:#}")),
        }
        Ok(found)
    }

    /// Adds the first that can be loaded; `false` if there is none.
    fn add(&mut self, candidates: impl IntoIterator<Item = Allocator>) -> Result<bool> {
        for allocator in candidates {
            if let Some(served) = allocator.served()? {
                let version = served.version.as_deref().unwrap_or("of unknown version");
                self.versions.push(format!("{} {version}", allocator.name));
                self.all.push(allocator);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_tenure(&mut self, file: &Path) -> Result<()> {
        let heap = Allocator::preloaded(TENURE, file).with(HEAP);
        let served = heap.served()?;
        let exit = || Allocator::preloaded(TENURE, file).with(EXIT).environment;
        self.background_exit = served.is_some().then(exit);
        match served {
            Some(served) if served.begins_with_page => self.all.push(heap),
            Some(_) => self.miss(TENURE, "its heap does not start here"),
            None => self.miss(TENURE, "its library cannot be loaded"),
        }
        Ok(())
    }

    fn miss(&mut self, name: &str, why: &str) {
        self.missing.push(format!("{name} ({why})"));
    }

    /// Says which versions there are and which allocators there are not.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("{}.", self.versions.join(", "))];
        if !self.missing.is_empty() {
            notes.push(format!("Not there: {}.", self.missing.join(", ")));
        }
        notes
    }
}
