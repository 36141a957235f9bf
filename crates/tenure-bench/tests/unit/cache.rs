use super::*;
use crate::alone::alone;
use crate::fixture::sentences;
use crate::measure::{Headroom, once};

#[test]
fn every_cache_returns_the_values_it_was_given() {
    alone(|| {
        let settings = Settings {
            seed: 1,
            is_named: true,
            sizes: Sizes::Quick,
            headroom: Headroom::now().unwrap(),
        };
        let mut experiment = experiment(&settings).unwrap();
        // The experiment below a limit of a cgroup takes seconds.
        experiment.cases.retain(|case| case.pace != Pace::Long);
        let cases = once(&mut experiment);
        let hits = |case: &&crate::record::Case| case.table.starts_with("Hits on");
        let hits: Vec<_> = cases.iter().filter(hits).collect();
        assert_eq!(hits.len(), 6);
        for case in hits {
            let names: Vec<_> = case.ways.iter().map(|way| way.name.as_str()).collect();
            assert_eq!(names, ["quick_cache", "moka", "tenure"], "{}", case.name);
        }
        assert!(sentences("cache", cases).ends_with('.'));
    });
}
