//! Tests of the words of shared objects.

use super::*;

#[test]
fn pinned_object_is_not_claimed() {
    let word = Word::default();
    assert!(word.claim(3, word.read()) && word.publish(3, State::Live, 2, true));
    assert!(!word.claim(4, word.read()));
    assert_eq!(word.pin(4), Ok(()));
    assert_eq!(word.unpin(1 << 3).processes(), 1 << 4);
    assert!(!word.unpin(1 << 4).is_doomed() && word.read().priority() == 2);
    assert!(word.claim(5, word.read()));
    assert_eq!(word.pin(4), Err(word.read()));
}

#[test]
fn claim_of_dead_process_is_taken_over_and_its_publication_refused() {
    let word = Word::default();
    assert!(word.claim(1, word.read()));
    assert!(!word.take_over(2, 1 << 3), "process 1 is alive");
    assert!(word.take_over(2, 1 << 1) && word.read().is_doomed());
    assert!(!word.publish(1, State::Live, 0, true));
    assert!(word.publish(2, State::Free, 0, false));
}

#[test]
fn doomed_object_gets_no_further_pin() {
    let word = Word::default();
    assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 0, true));
    assert!(word.doom().is_doomed() && word.pin(1).is_err());
    assert!(word.unpin(1).is_claimable());
}

#[test]
fn doomed_object_whose_claim_ends_without_effect_stays_doomed() {
    let word = Word::default();
    assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 1, false));
    let seen = word.doom();
    assert!(word.claim(2, seen) && word.restore(2, seen.doomed()));
    assert!(word.pin(1).is_err() && word.read() == seen);
    assert!(!word.restore(2, seen), "nobody has a claim");
}

#[test]
fn replaced_value_is_found_until_the_switch_and_owned_by_one_process() {
    let word = Word::default();
    assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 1, false));
    let seen = word.read();
    assert!(word.begin_replacing(3, seen) && word.read().unowned() == seen);
    assert!(!word.begin_replacing(4, seen) && !word.begin_replacing(4, word.read()));
    assert!(!word.claim(4, word.read()) && !word.switch(4, 2));
    assert!(word.switch(3, 2) && word.read().side() == 1 && word.read().priority() == 2);
    assert!(
        !word.claim(4, word.read()),
        "the process frees the old side"
    );
    assert!(word.unpin(1 << 3).is_claimable() && word.read().side() == 1);
    assert!(word.claim(4, word.read()) && word.read().side() == 1);
}

#[test]
fn doomed_value_is_not_replaced() {
    let word = Word::default();
    assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 1, false));
    let seen = word.read();
    assert!(word.begin_replacing(3, seen) && word.doom_value(seen));
    assert!(!word.switch(3, 1) && !word.doom_value(seen));
    assert!(word.unpin(1 << 3).is_claimable() && word.read().side() == 0);
}

#[test]
fn other_side_of_dead_process_is_taken_over() {
    let word = Word::default();
    assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 1, false));
    assert!(!word.take_over_replacing(2, !0), "nobody owns it");
    assert!(word.begin_replacing(3, word.read()));
    assert!(!word.take_over_replacing(2, 1 << 4), "process 3 is alive");
    assert!(word.take_over_replacing(2, 1 << 3) && !word.switch(3, 1));
}

#[test]
fn every_value_has_a_meaning() {
    for bits in [u64::MAX, 1 << 63, 3 << STATE_SHIFT, PROCESSES] {
        let word = Word(AtomicU64::new(bits));
        let _ = (word.read().state(), word.read().priority());
        let _ = (word.pin(0).is_ok(), word.doom(), word.unpin(1));
        let _ = (word.claim(0, word.read()), word.take_over(0, PROCESSES));
        let _ = (word.begin_replacing(0, word.read()), word.switch(0, 7));
        let _ = (word.take_over_replacing(0, !0), word.read().side());
    }
}
