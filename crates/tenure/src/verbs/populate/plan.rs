//! The plan of a call: the parts of the range and the method for each, checked
//! before anything changes.

use std::os::fd::BorrowedFd;

use super::options::{Access, PopulateOptions, Strategy};
use crate::background::pool;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::map;
use crate::ground::sys::vma::{self, Vma};

pub(super) const VERB: &str = "populate";

/// The file behind a mapping, for `fallocate`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: BorrowedFd<'a>,
    /// The file's offset at the address `start`.
    pub(super) offset: u64,
    pub(super) start: usize,
}

/// Up to this many threads, allocating a memfd's pages first makes populating 7 to
/// 10 % faster (2 MiB to 4 GiB, one and two threads). The kernel serializes
/// allocations of one file, so more threads would wait for each other.
const MAX_ALLOCATING_THREADS: usize = 2;

/// How one part is faulted in: a [`Strategy`], resolved for its kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Populate,
    Touch,
    ReadThenWrite,
    Allocate,
    ReadAhead,
    /// [`Method::Populate`], which leaves memory of kinds that the kernel refuses (no
    /// access, secret, device) to `mlock`.
    BeforeLock,
    /// [`Method::Populate`] or [`Method::ReadAhead`], whichever measures faster.
    Fastest,
    /// [`Method::Populate`], for what the page pool has no block.
    Pool,
}

/// A part of the range within one VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: PageRange,
    pub(super) method: Method,
    pub(super) access: Access,
    /// The page size of the VMA; chunks must be multiples of it.
    pub(super) page_bytes: usize,
}

/// Checks all VMAs of the range and chooses a method for each.
pub(super) fn plan(
    range: PageRange,
    options: &PopulateOptions,
    source: Option<Source<'_>>,
) -> Result<(Vec<Part>, Vec<Vma>)> {
    let vmas = vma::cover(range)?;
    let access = options.access;
    let strategy = match options.strategy {
        Strategy::Auto if should_allocate(range, options, &vmas, source) => {
            Strategy::AllocateThenPopulate
        }
        strategy => strategy,
    };
    let mut parts = Vec::with_capacity(vmas.len());
    for vma in &vmas {
        check(range, vma, access)?;
        let part = Part {
            range: vma.range,
            method: method(range, vma, access, strategy, source.is_some())?,
            access,
            page_bytes: vma.page_bytes,
        };
        let can_move = strategy == Strategy::Auto
            && part.method == Method::Populate
            && access == Access::Write
            && vma.kind == MemoryKind::PrivateAnonymous;
        match can_move && pool::has_blocks_for(vma.range) {
            true => parts.extend(with_blocks(part)),
            false => parts.push(part),
        }
    }
    Ok((parts, vmas))
}

/// Divides a part into the blocks that the page pool may fill and what is around them.
fn with_blocks(part: Part) -> impl Iterator<Item = Part> {
    let (start, end) = (part.range.start(), part.range.end());
    let first = start.next_multiple_of(pool::BLOCK_BYTES).min(end);
    let last = (end - end % pool::BLOCK_BYTES).max(first);
    let blocks = Part {
        range: PageRange::between(first, last),
        method: Method::Pool,
        page_bytes: pool::BLOCK_BYTES,
        ..part
    };
    let around = |start, end| Part {
        range: PageRange::between(start, end),
        ..part
    };
    let parts = [around(start, first), blocks, around(last, end)];
    parts.into_iter().filter(|part| !part.range.is_empty())
}

/// Returns the parts and the methods for a range that is being locked.
pub(super) fn plan_for_lock(vmas: &[Vma]) -> Vec<Part> {
    let part = |vma: &Vma| Part {
        range: vma.range,
        // Touching could have side effects on device memory.
        method: match Features::get().madv_populate {
            Err(_) if vma.readable && vma.kind == MemoryKind::PrivateAnonymous => Method::Touch,
            _ => Method::BeforeLock,
        },
        access: access_of_lock(vma),
        page_bytes: vma.page_bytes,
    };
    vmas.iter().map(part).collect()
}

/// Returns the access for which `mlock` faults pages in: private pages become the
/// program's own, and shared ones are not dirtied.
pub(super) fn access_of_lock(vma: &Vma) -> Access {
    match vma.writable && vma.kind != MemoryKind::Shared {
        true => Access::Write,
        false => Access::Read,
    }
}

fn should_allocate(
    range: PageRange,
    options: &PopulateOptions,
    vmas: &[Vma],
    source: Option<Source<'_>>,
) -> bool {
    options.access == Access::Write
        && Features::get().madv_populate.is_ok()
        && vmas.iter().all(|vma| vma.kind == MemoryKind::Shared)
        && options.threads_for(range) <= MAX_ALLOCATING_THREADS
        && source.is_some_and(|source| map::is_memory_mostly_empty(source.file) == Ok(true))
}

fn check(range: PageRange, vma: &Vma, access: Access) -> Result<()> {
    if vma.kind == MemoryKind::Special {
        return Err(wrong_kind(range, vma, "memory and files"));
    }
    let missing = match access {
        Access::Write if !vma.writable => "write",
        Access::Read if !vma.readable => "read",
        _ => return Ok(()),
    };
    Err(Error::NoAccess {
        verb: VERB,
        range,
        part: vma.range,
        missing,
    })
}

fn method(
    range: PageRange,
    vma: &Vma,
    access: Access,
    strategy: Strategy,
    has_source: bool,
) -> Result<Method> {
    let populate = Features::get().madv_populate;
    let is_file = matches!(vma.kind, MemoryKind::PrivateFile | MemoryKind::Shared);
    let method = match (strategy, populate) {
        (Strategy::Touch, _) | (Strategy::Auto, Err(_)) => return Ok(Method::Touch),
        (_, Err(answer)) => {
            return Err(Error::Unsupported {
                verb: VERB,
                feature: "MADV_POPULATE",
                answer,
                remedy: "it needs Linux 5.14; Strategy::Auto and Touch do without",
            });
        }
        (Strategy::Auto, Ok(())) if is_file && access == Access::Read => Method::Fastest,
        (Strategy::Auto | Strategy::Populate, Ok(())) => Method::Populate,
        (Strategy::ReadThenWrite, Ok(())) if access == Access::Write && vma.readable => {
            Method::ReadThenWrite
        }
        (Strategy::ReadThenWrite, Ok(())) => {
            return Err(wrong_kind(range, vma, "memory that is to be written"));
        }
        (Strategy::ReadAheadThenPopulate, Ok(())) if is_file => Method::ReadAhead,
        (Strategy::ReadAheadThenPopulate, Ok(())) => {
            return Err(wrong_kind(range, vma, "files, by reading ahead,"));
        }
        (Strategy::AllocateThenPopulate, Ok(()))
            if vma.kind == MemoryKind::Shared && has_source && access == Access::Write =>
        {
            Method::Allocate
        }
        (Strategy::AllocateThenPopulate, Ok(())) => {
            return Err(wrong_kind(
                range,
                vma,
                "a Mapping of a memfd or a shared, writable file, by allocating and for writing,",
            ));
        }
    };
    Ok(method)
}

fn wrong_kind(range: PageRange, vma: &Vma, wanted: &'static str) -> Error {
    Error::WrongKind {
        verb: VERB,
        range,
        part: vma.range,
        found: vma.kind,
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{Mapping, MemfdPages};
    use crate::ground::sys::pmd_bytes;

    fn method_of(memory: &Mapping, options: &PopulateOptions) -> Method {
        let (file, offset) = memory.writable_file().unwrap();
        let source = Source {
            file,
            offset,
            start: memory.range().start(),
        };
        plan(memory.range(), options, Some(source)).unwrap().0[0].method
    }

    #[test]
    fn empty_memfd_with_few_writing_threads_is_allocated_first() {
        if Features::get().madv_populate.is_err() {
            return;
        }
        let memory = Mapping::memfd(2 * pmd_bytes(), MemfdPages::Base)
            .map()
            .unwrap();
        let write = PopulateOptions::new(Access::Write);
        assert_eq!(method_of(&memory, &write), Method::Allocate);
        assert_eq!(
            method_of(&memory, &write.clone().threads(3)),
            Method::Populate
        );
        let read = PopulateOptions::new(Access::Read);
        assert_eq!(method_of(&memory, &read), Method::Fastest);
        memory.populate(.., Access::Write).unwrap();
        assert_eq!(method_of(&memory, &write), Method::Populate);
    }
}
