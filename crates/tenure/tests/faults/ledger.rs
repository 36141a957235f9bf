//! The ledger of admitted memory is balanced once nothing is admitted any more.

use std::time::{Duration, Instant};

use tenure::{Headroom, HeadroomLimit, headroom};

/// Asserts that nothing is admitted: a known amount that is admitted now is all that there
/// is. So bytes that were never given back show, and bytes that were given back twice.
pub fn assert_balanced() {
    const BYTES: usize = 16 << 20;
    /// One is wrong if another process takes memory and frees as much within it.
    const LOOKS: usize = 20;
    let admission = headroom::admit(BYTES).expect("16 MiB");
    let others = || outstanding_bytes() - BYTES as isize;
    let found: Vec<_> = (0..LOOKS)
        .map(|_| others())
        .take_while(|&bytes| bytes != 0)
        .collect();
    drop(admission);
    assert!(
        found.len() < LOOKS,
        "{found:?} bytes are admitted by nobody"
    );
}

/// Returns the bytes that are admitted and not resident, which `Headroom` has subtracted.
fn outstanding_bytes() -> isize {
    let start = Instant::now();
    loop {
        let before = available_bytes();
        let headroom = Headroom::lower_bound().expect("the limits");
        let unused_bytes = match headroom.limit {
            HeadroomLimit::Cgroup {
                limit_bytes,
                used_bytes,
                ..
            } => Some(limit_bytes.saturating_sub(used_bytes)),
            // Another process has taken or freed memory in between.
            _ => Some(before).filter(|&before| before == available_bytes()),
        };
        if let Some(unused_bytes) = unused_bytes {
            return unused_bytes as isize - headroom.bytes as isize;
        }
        let is_late = start.elapsed() > Duration::from_secs(20);
        assert!(!is_late, "MemAvailable never stays the same for a moment");
    }
}

fn available_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() << 10
}
