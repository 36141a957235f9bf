use super::*;
use crate::alone::alone;
use crate::measure::{Headroom, once};

#[test]
fn percentile_of_hundred_values_is_the_value_of_that_rank() {
    let values: Vec<f64> = (1..=100).map(f64::from).collect();
    let percentiles = PERCENTILES.map(|(_, percent)| percentile(&values, percent));
    assert_eq!(percentiles, [50.0, 90.0, 99.0]);
    assert_eq!(percentile(&[7.0], 99.0), 7.0);
    assert_eq!(percentile(&[1.0, 2.0], 99.0), 2.0);
}

#[test]
fn each_way_records_ordered_percentiles() {
    alone(|| {
        let mut experiment = Experiment {
            title: String::new(),
            notes: Vec::new(),
            compared: MEDIAN,
            cases: vec![case(16 << 20, 5)],
        };
        for way in &once(&mut experiment)[0].ways {
            let figures = PERCENTILES.map(|(name, _)| way.figure(name).unwrap());
            let [p50, p90, p99] = figures.map(|figure| figure.series.median);
            assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{p50} {p90} {p99}");
        }
    });
}

#[test]
fn memory_that_is_not_unmapped_fails_the_check() {
    let memory = RawMapping::base_pages(1 << 20).unwrap();
    check_unmapped(memory.start(), memory.len()).unwrap_err();
}

#[test]
fn cases_beside_little_headroom_are_fewer() {
    let names = |bytes| {
        let settings = Settings {
            seed: 1,
            is_named: true,
            sizes: Sizes::Medium,
            headroom: Headroom::of_bytes(bytes),
        };
        cases(&settings).len()
    };
    assert_eq!(
        [200 << 20, 512 << 20, 4 * GIB, 16 * GIB].map(names),
        [0, 1, 2, 3]
    );
}
