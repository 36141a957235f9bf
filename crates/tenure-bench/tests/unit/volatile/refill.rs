use super::*;

#[test]
fn pattern_of_successive_passes_is_never_zero_and_never_the_same() {
    for pass in 0..40 {
        for chunk in 0..CHUNKS {
            assert_ne!(pattern(pass, chunk), 0);
            assert_ne!(pattern(pass, chunk), pattern(pass + 1, chunk));
        }
    }
}

#[test]
fn check_ends_with_a_changed_end_fails() {
    check_ends(&[1, 0, 1], 1).unwrap();
    check_ends(&[1, 1, 0], 1).unwrap_err();
}
