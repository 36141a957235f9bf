//! Killing a process that has much memory: how long does its parent wait?

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use tenure::teardown;

use super::{
    super::{
        experiment::{Recorder, Unit, Way},
        kernel,
        raw::RawMapping,
        touch,
        trace::Trace,
    },
    ways::{CALLER, FREED},
};
use crate::text::bytes_text;

pub const PLAIN: &str = "without tear-down";
pub const TEAR_DOWN: &str = "with tear-down";

/// What the child says when all its memory is there.
const READY: u8 = b'r';

/// Makes the baseline.
pub fn plain(len: usize) -> Way {
    way(PLAIN, len, false).baseline()
}

/// Makes the way of a process that has asked for tear-down.
pub fn with_tear_down(len: usize) -> Way {
    way(TEAR_DOWN, len, true).tenure()
}

fn way(name: &'static str, len: usize, tear_down: bool) -> Way {
    Way::new(
        name,
        move || Child::with_memory(len, tear_down),
        move |mut child: Child, recorder: &mut Recorder<'_>| {
            let (status, caller_seconds) = recorder.measure(|| child.kill_and_wait());
            let (gone, more_seconds) = recorder.measure(|| child.trace.wait_until_gone());
            gone?;
            recorder.record(CALLER, Unit::Seconds, caller_seconds);
            recorder.record(FREED, Unit::Seconds, caller_seconds + more_seconds);
            status
        },
        |status: WaitStatus, _: &mut Recorder<'_>| {
            let signal = status.terminating_signal();
            ensure!(
                signal == Some(Signal::KILL.as_raw()),
                "the child ended otherwise than by SIGKILL: {status:?}"
            );
            Ok(())
        },
    )
}

/// A copy of this process with memory of its own, killed when this is dropped.
struct Child {
    pid: Option<Pid>,
    trace: Trace,
    /// Its end is the child's end: it does not outlive us.
    _leash: PipeWriter,
}

impl Child {
    /// Makes a child that brings `len` bytes in, and waits until it has.
    fn with_memory(len: usize, tear_down: bool) -> Result<Self> {
        let trace = Trace::new()?;
        let (mut from_child, to_parent) = io::pipe().context("making a pipe")?;
        let (leash_end, leash) = io::pipe().context("making a pipe")?;
        // SAFETY: the child has this thread alone, and locks as they were. It uses
        // malloc and tenure, which both have theirs put right at fork, and it
        // never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop((from_child, leash));
            let made = live(len, tear_down, &trace, to_parent, leash_end);
            // SAFETY: ends this process, without running what its parent has left
            // to be run at the end.
            unsafe { libc::_exit(i32::from(made.is_err())) }
        }
        drop(to_parent);
        let pid = Pid::from_raw(pid).filter(|_| pid > 0);
        let pid = pid.ok_or_else(io::Error::last_os_error).context("fork")?;
        let child = Self {
            pid: Some(pid),
            trace,
            _leash: leash,
        };
        let mut said = Vec::new();
        from_child
            .read_to_end(&mut said)
            .context("waiting for the child")?;
        if said != [READY] {
            bail!("the child: {}", String::from_utf8_lossy(&said));
        }
        // The figure is a sum of what each CPU counts for itself, so nearly all
        // must do.
        let resident = kernel::resident_bytes_of(pid.as_raw_nonzero().get() as u32)?;
        ensure!(
            resident >= len as u64 / 20 * 19,
            "only {} of the child's {} are in memory",
            bytes_text(resident as f64),
            bytes_text(len as f64)
        );
        Ok(child)
    }

    fn kill_and_wait(&mut self) -> Result<WaitStatus> {
        let pid = self.pid.take().context("killed already")?;
        kill_process(pid, Signal::KILL).context("kill")?;
        let ended = waitpid(Some(pid), WaitOptions::empty()).context("waitpid")?;
        let (_, status) = ended.context("waitpid returned without a child")?;
        Ok(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid.is_some() {
            // It can only fail when somebody else has waited for our child.
            let _ = self.kill_and_wait();
        }
    }
}

/// The child's life: it has memory until it is killed, or its parent is.
fn live(
    len: usize,
    tear_down: bool,
    trace: &Trace,
    mut to_parent: PipeWriter,
    mut leash_end: PipeReader,
) -> Result<()> {
    let made = trace
        .map()
        .and_then(|traced| Ok((traced, fill(len, tear_down)?)));
    let said = match &made {
        Ok(_) => to_parent.write_all(&[READY]),
        Err(error) => write!(to_parent, "{error:#}"),
    };
    drop(to_parent);
    said?;
    let _memory = made?;
    leash_end.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn fill(len: usize, tear_down: bool) -> Result<RawMapping> {
    if tear_down {
        teardown::enable()?;
    }
    let mut memory = RawMapping::base_pages(len)?;
    // SAFETY: `base_pages` maps writable memory.
    touch::bring_in(unsafe { memory.bytes_mut() })?;
    Ok(memory)
}
