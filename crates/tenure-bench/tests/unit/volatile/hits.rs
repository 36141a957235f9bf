use super::*;

#[test]
fn thread_counts_are_powers_of_two_up_to_the_cpus_and_at_least_two() {
    let counts = |cpus| thread_counts(cpus).collect::<Vec<_>>();
    assert_eq!(counts(1), [1, 2]);
    assert_eq!(counts(2), [1, 2]);
    assert_eq!(counts(7), [1, 2, 4]);
    assert_eq!(counts(16), [1, 2, 4, 8, 16]);
}
