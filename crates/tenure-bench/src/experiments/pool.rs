//! Experiment: requests for zeroed memory, from pages that this process has recycled before.

use rustix::mm::{Advice, madvise};
use tenure::pool::{self, PoolOptions};
use tenure::{HugePages, Mapping};

use crate::measure::prelude::*;

const REQUEST: &str = "request";
const REPLACED: &str = "replaced";
const CPU: &str = "CPU time";

const MIB: usize = 1 << 20;
const BLOCK_BYTES: usize = 2 * MIB;
const LONG_BYTES: usize = 4096 * MIB;

pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let mut notes = vec![
        "CPU time is that of all threads of the process. A table is replaced by another: the \
         first is released, or recycled, and the time ends when the second is populated; with the \
         pool that includes waiting until the recycled pages are zeroed."
            .to_owned(),
        "tenure's pool keeps blocks that the kernel cannot take only while several GiB are left; \
         otherwise they are lazily free, and populating takes them back."
            .to_owned(),
    ];
    let wanted: &[usize] = match settings.sizes {
        Sizes::Quick => &[64 * MIB],
        Sizes::Medium | Sizes::Full => &[64 * MIB, 1024 * MIB, 4096 * MIB],
    };
    let mut cases = Vec::new();
    for &wanted in wanted {
        let fitted = settings.headroom.fit(wanted, 3, BLOCK_BYTES)?;
        notes.extend(fitted.note);
        for (pages, choice) in [
            ("base pages", HugePages::Never),
            ("huge pages", HugePages::Always),
        ] {
            let name = format!("{}, {pages}", bytes_text(fitted.len as f64));
            let requests = vec![
                request_of_kernel(fitted.len, choice).baseline(),
                request_of_recycled(fitted.len, choice),
                request_of_pool(fitted.len, choice).tenure(),
            ];
            let requests = Case::new(name.clone(), requests)
                .in_table("a request for zeroed memory")
                .comparing(REQUEST);
            let replaced = vec![
                replace_by_kernel(fitted.len, choice).baseline(),
                replace_by_pool(fitted.len, choice).tenure(),
            ];
            let replaced = Case::new(name, replaced)
                .in_table("a table replaced by another")
                .comparing(CPU);
            // Each round of the largest takes seconds.
            cases.extend([requests, replaced].map(|case| match wanted >= LONG_BYTES {
                true => case.long(),
                false => case,
            }));
        }
    }
    Ok(Experiment {
        title: "populate from recycled memory".to_owned(),
        notes,
        compared: REQUEST,
        cases,
    })
}

fn map(len: usize, choice: HugePages) -> Result<Mapping> {
    Ok(Mapping::anonymous(len).huge_pages(choice).map()?)
}

/// Maps memory and populates it with one call.
fn map_and_advise(len: usize, choice: HugePages) -> Result<Mapping> {
    let memory = map(len, choice)?;
    let range = memory.range();
    // SAFETY: populating changes no contents.
    unsafe {
        madvise(
            range.as_ptr().cast(),
            range.len(),
            Advice::LinuxPopulateWrite,
        )
    }
    .context("madvise(MADV_POPULATE_WRITE)")?;
    Ok(memory)
}

fn fill(memory: &mut Mapping) -> Result<()> {
    memory.as_mut_slice()?.fill(1);
    Ok(())
}

/// Turns the pool off when it is dropped.
struct Pool;

impl Drop for Pool {
    fn drop(&mut self) {
        // Turning it off cannot fail.
        let _ = pool::configure(&PoolOptions::new());
    }
}

/// Fills a pool of so many bytes with recycled memory.
fn filled_pool(len: usize, choice: HugePages) -> Result<Pool> {
    const MAX_TRIES: usize = 20;
    pool::configure(&PoolOptions::new().max_bytes(len))?;
    let pool = Pool;
    for _ in 0..MAX_TRIES {
        if pool::stats().bytes as usize == len {
            return Ok(pool);
        }
        let mut memory = map(len, choice)?;
        fill(&mut memory)?;
        recycle(memory)?;
    }
    bail!("recycled memory does not enter the pool (UFFDIO_MOVE needs Linux 6.8)")
}

/// Has the pool take the pages, and waits until they are zeroed.
fn recycle(memory: Mapping) -> Result<()> {
    memory.recycle().map_err(|refused| refused.error)?;
    Ok(tenure::drain(None)?)
}

/// Fails unless all of the memory is zeros, and the first write to each page takes no fault.
fn check(memory: &mut Mapping) -> Result<()> {
    let is_zero = memory.as_slice().iter().step_by(509).all(|&byte| byte == 0);
    ensure!(is_zero, "fresh memory is not all zeros");
    let before = kernel::minor_faults();
    for page in memory.as_mut_slice()?.chunks_mut(page_size()) {
        page[0] = 1;
    }
    let faults = kernel::minor_faults() - before;
    ensure!(faults < 8, "touching takes {faults} page faults");
    Ok(())
}

fn request_of_kernel(len: usize, choice: HugePages) -> Way {
    Way::new(
        "mmap, MADV_POPULATE_WRITE",
        || Ok(()),
        move |(), recorder| recorder.time(REQUEST, || map_and_advise(len, choice)),
        |mut memory, _| check(&mut memory),
    )
}

fn request_of_recycled(len: usize, choice: HugePages) -> Way {
    Way::new(
        "memset of recycled memory",
        move || {
            let mut memory = map(len, choice)?;
            fill(&mut memory)?;
            Ok(memory)
        },
        |mut memory, recorder| {
            recorder.time(REQUEST, || -> Result<()> {
                memory.as_mut_slice()?.fill(0);
                Ok(())
            })?;
            Ok(memory)
        },
        |mut memory, _| check(&mut memory),
    )
}

fn request_of_pool(len: usize, choice: HugePages) -> Way {
    Way::new(
        "tenure, ready pool",
        move || filled_pool(len, choice),
        move |pool, recorder| {
            let request = || Mapping::anonymous(len).huge_pages(choice).map_populated();
            let memory = recorder.time(REQUEST, request)?;
            Ok((memory, pool))
        },
        |(mut memory, _pool), _| {
            ensure!(
                pool::stats().bytes == 0,
                "the pool has not given its blocks"
            );
            check(&mut memory)
        },
    )
}

fn replace_by_kernel(len: usize, choice: HugePages) -> Way {
    Way::new(
        "munmap, mmap, MADV_POPULATE_WRITE",
        move || {
            let mut memory = map(len, choice)?;
            fill(&mut memory)?;
            Ok(memory)
        },
        move |memory, recorder| {
            let cpu_before = kernel::process_cpu_time();
            let memory = recorder.time(REPLACED, || {
                let unmapped = memory.munmap_sync();
                unmapped.map_err(|refused| refused.error)?;
                map_and_advise(len, choice)
            })?;
            let cpu = kernel::process_cpu_time() - cpu_before;
            recorder.record(CPU, Unit::Seconds, cpu.as_secs_f64());
            Ok(memory)
        },
        |mut memory, _| check(&mut memory),
    )
}

fn replace_by_pool(len: usize, choice: HugePages) -> Way {
    Way::new(
        "tenure, pool",
        move || {
            let pool = filled_pool(len, choice)?;
            let mut memory = Mapping::anonymous(len).huge_pages(choice).map_populated()?;
            fill(&mut memory)?;
            Ok((memory, pool))
        },
        move |(memory, pool), recorder| {
            let cpu_before = kernel::process_cpu_time();
            let memory = recorder.time(REPLACED, || -> Result<Mapping> {
                recycle(memory)?;
                Ok(Mapping::anonymous(len).huge_pages(choice).map_populated()?)
            })?;
            let cpu = kernel::process_cpu_time() - cpu_before;
            recorder.record(CPU, Unit::Seconds, cpu.as_secs_f64());
            Ok((memory, pool))
        },
        |(mut memory, _pool), _| check(&mut memory),
    )
}
