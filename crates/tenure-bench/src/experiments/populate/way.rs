//! A way of populating: its preparation, timing and check.

use super::check::check;
use super::work::{How, PROBE_LEN, TIME, Work};
use crate::measure::prelude::*;

impl Work {
    /// Makes a way of which all is timed, also mmap: MAP_POPULATE does both at once.
    pub fn way(&self, (name, how): (impl Into<String>, How)) -> Way {
        let [before, during, after] = [(); 3].map(|()| self.clone());
        Way::new(
            name,
            move || before.kind.reset(),
            move |blocks, recorder: &mut Recorder<'_>| {
                let clock = recorder.clock();
                let mut populate = || recorder.time(TIME, || during.populate(&how));
                if !during.is_probed {
                    return Ok((populate()?, blocks));
                }
                let (populated, longest) = probe::longest_wait(clock, PROBE_LEN, populate)?;
                let name = "another thread's mmap waits at most";
                recorder.record(name, Unit::Seconds, longest);
                Ok((populated?, blocks))
            },
            move |(mut populated, blocks), _| check(&mut populated, &after, blocks),
        )
    }
}
