use super::*;
use crate::{
    alone::alone,
    fixture::sentences,
    measure::{Headroom, once},
};

#[test]
fn every_way_frees_the_memory() {
    alone(|| {
        for (sizes, least) in [(Sizes::Quick, 2), (Sizes::Full, 8)] {
            let settings = Settings {
                seed: 1,
                is_named: true,
                sizes,
                headroom: Headroom::of_bytes(200 << 20),
            };
            let mut experiment = experiment(&settings).unwrap();
            let cases = once(&mut experiment);
            assert!(cases.len() >= least);
            let text = sentences("release", cases);
            assert!(text.contains("the caller waits "), "{text}");
            assert!(
                text.contains("another thread's mmap waits at most "),
                "{text}"
            );
            let is_killed = text.contains("with tear-down");
            assert_eq!(is_killed, sizes != Sizes::Quick, "{text}");
        }
    });
}
