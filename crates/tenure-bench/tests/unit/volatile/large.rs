use super::*;
use crate::alone::alone;
use crate::machine::clock::MonotonicClock;

#[test]
fn call_that_changes_the_contents_fails_its_check() {
    alone(|| {
        let is_right = |call: Call<Advised>| {
            let make = || advised(FREE)(4 * page_size());
            let mut way = way("", false, make, call);
            way.take_sample(&MonotonicClock::SHARED).is_ok()
        };
        assert!(is_right(|_| Ok(Some(Contents::Intact))));
        assert!(!is_right(|memory| {
            memory.bytes()?[page_size()] = 0;
            Ok(Some(Contents::Intact))
        }));
        assert!(!is_right(|_| Ok(Some(Contents::Discarded))));
    });
}

#[test]
fn probe_of_each_wait_runs_again_and_again() {
    alone(|| {
        let mut probes = probes().unwrap();
        assert_eq!(probes.len(), WAITS.len());
        for _ in 0..3 {
            for probe in &mut probes {
                probe(&MonotonicClock::SHARED).unwrap();
            }
        }
    });
}
