use super::*;

#[test]
fn frequencies_follow_the_law_and_the_seed_repeats_them() {
    const DRAWS: usize = 100_000;
    let count = |seed| {
        let mut zipf = Zipf::new(1000, 0.8, seed);
        let mut counts = vec![0_usize; 1000];
        (0..DRAWS).for_each(|_| counts[zipf.draw()] += 1);
        counts
    };
    let counts = count(1);
    assert_eq!(counts, count(1));
    assert_ne!(counts, count(2));
    // The first comes 10^0.8 = 6.3 times as often as the tenth.
    let quotient = counts[0] as f64 / counts[9] as f64;
    assert!((5.0..8.0).contains(&quotient), "{quotient}");
}
