//! The allocators that are compared: those that are installed, and tenure's heap.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::Path,
    rc::Rc,
};

use anyhow::Result;

use super::{job::Served, process::Worker};
use crate::library;

pub const GLIBC: &str = "glibc";
pub const MMAP_ALWAYS: &str = "glibc, mmap always";
pub const TENURE: &str = "tenure";

/// Others, and the names under which the dynamic loader knows them.
const OTHERS: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2"]),
    ("mimalloc", &["libmimalloc.so.2"]),
    (
        "tcmalloc",
        &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
    ),
];
/// A threshold that was set stays where it is: each block from there on is mapped,
/// and unmapped when it is freed.
const MMAP_FROM: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072");
const HEAP: (&str, &str) = ("TENURE_HEAP", "1");
const EXIT: (&str, &str) = ("TENURE_EXIT", "background");

/// A malloc, and how a program gets it.
#[derive(Clone, Debug)]
pub struct Allocator {
    pub name: &'static str,
    library: Option<OsString>,
    variables: Vec<(&'static str, &'static str)>,
}

impl Allocator {
    /// The C library's.
    pub fn libc() -> Self {
        Self {
            name: GLIBC,
            library: None,
            variables: Vec::new(),
        }
    }

    fn preloaded(name: &'static str, library: impl Into<OsString>) -> Self {
        Self {
            name,
            library: Some(library.into()),
            variables: Vec::new(),
        }
    }

    fn with(mut self, variable: (&'static str, &'static str)) -> Self {
        self.variables.push(variable);
        self
    }

    pub fn is_tenure(&self) -> bool {
        self.name == TENURE
    }

    /// The environment of a program that is to have it, which has nothing else in
    /// it that allocators look for.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let where_else = "LD_LIBRARY_PATH";
        let folders = env::var_os(where_else).map(|folders| (where_else, folders));
        let preload = self.library.clone().map(|file| ("LD_PRELOAD", file));
        let variables = self.variables.iter();
        let variables = variables.map(|&(name, value)| (name, value.into()));
        folders
            .into_iter()
            .chain(preload)
            .chain(variables)
            .collect()
    }

    /// Asks a program that was to have it what it has; `None` when the library
    /// cannot be loaded.
    fn served(&self) -> Result<Option<Served>> {
        let library = self.library.as_deref().map(Path::new);
        let name = library
            .and_then(Path::file_name)
            .map(OsStr::to_string_lossy);
        let served = Worker::tell(self, name.as_deref())?;
        Ok((library.is_none() || served.library.is_some()).then_some(served))
    }
}

/// What is compared.
pub struct Allocators {
    /// The C library's, others, and tenure's at the end.
    pub all: Vec<Rc<Allocator>>,
    /// The C library's, with tenure's tear-down.
    pub background_exit: Option<Rc<Allocator>>,
    /// What there is and what there is not.
    pub notes: Vec<String>,
}

impl Allocators {
    /// Looks for all.
    pub fn find() -> Result<Self> {
        let mut search = Search::default();
        search.c_library()?;
        for (name, libraries) in OTHERS {
            search.other(name, libraries)?;
        }
        let background_exit = search.tenure()?;
        let Search {
            all,
            versions,
            missing,
        } = search;
        let mut notes = vec![format!("{}.", versions.join(", "))];
        if !missing.is_empty() {
            notes.push(format!("Not there: {}.", missing.join(", ")));
        }
        Ok(Self {
            all: all.into_iter().map(Rc::new).collect(),
            background_exit: background_exit.map(Rc::new),
            notes,
        })
    }
}

/// What has been found so far.
#[derive(Default)]
struct Search {
    all: Vec<Allocator>,
    versions: Vec<String>,
    missing: Vec<String>,
}

impl Search {
    fn c_library(&mut self) -> Result<()> {
        let plain = Allocator::libc();
        if let Some(served) = plain.served()? {
            self.add(plain, &served);
        }
        self.all.push(Allocator {
            name: MMAP_ALWAYS,
            ..Allocator::libc().with(MMAP_FROM)
        });
        Ok(())
    }

    fn other(&mut self, name: &'static str, libraries: &[&str]) -> Result<()> {
        for library in libraries {
            let allocator = Allocator::preloaded(name, library);
            if let Some(served) = allocator.served()? {
                self.add(allocator, &served);
                return Ok(());
            }
        }
        self.miss(name, libraries[0]);
        Ok(())
    }

    /// Looks for tenure's heap, and returns the C library's malloc with tenure's
    /// tear-down.
    fn tenure(&mut self) -> Result<Option<Allocator>> {
        let file = match library::find() {
            Ok(file) => file,
            Err(why) => {
                self.miss(TENURE, &format!("{why:#}"));
                return Ok(None);
            }
        };
        let tenure = Allocator::preloaded(TENURE, file);
        let heap = tenure.clone().with(HEAP);
        match heap.served()? {
            Some(served) if served.begins_with_page => self.all.push(heap),
            Some(_) => self.miss(TENURE, "its heap does not start here"),
            None => {
                self.miss(TENURE, "its library cannot be loaded");
                return Ok(None);
            }
        }
        Ok(Some(tenure.with(EXIT)))
    }

    fn add(&mut self, allocator: Allocator, served: &Served) {
        let version = served.version.as_deref().unwrap_or("of unknown version");
        self.versions.push(format!("{} {version}", allocator.name));
        self.all.push(allocator);
    }

    fn miss(&mut self, name: &str, why: &str) {
        self.missing.push(format!("{name} ({why})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_loads_the_library_and_sets_what_it_needs() {
        let tenure = Allocator::preloaded(TENURE, "/lib/x.so").with(HEAP);
        let environment = tenure.environment();
        assert!(environment.contains(&("LD_PRELOAD", "/lib/x.so".into())));
        assert!(environment.contains(&("TENURE_HEAP", "1".into())));
        let plain = Allocator::libc().environment();
        assert!(plain.iter().all(|(name, _)| *name == "LD_LIBRARY_PATH"));
    }
}
