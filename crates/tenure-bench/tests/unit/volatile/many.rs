use super::*;
use crate::machine::clock::MonotonicClock;

#[test]
fn probe_of_each_wait_runs_again_and_again() {
    let mut probes = probes().unwrap();
    assert_eq!(probes.len(), WAITS.len());
    for _ in 0..3 {
        for probe in &mut probes {
            probe(&MonotonicClock::SHARED).unwrap();
        }
    }
}
