//! Each model, run through all its interleavings.

/// `make test-thorough` runs tests of this name.
mod thorough {
    #[test]
    fn unmarked_object_is_neither_offered_nor_reclaimed() {
        tenure_model::unmarked_object_is_neither_offered_nor_reclaimed();
    }

    #[test]
    fn marking_claimed_object_again_renews_only_the_mark() {
        tenure_model::marking_claimed_object_again_renews_only_the_mark();
    }

    #[test]
    fn large_object_is_offered_until_it_is_wanted() {
        tenure_model::large_object_is_offered_until_it_is_wanted();
    }

    #[test]
    fn unmarked_object_is_not_purged() {
        tenure_model::unmarked_object_is_not_purged();
    }

    #[test]
    fn given_up_segment_is_freed_once_after_its_last_pin() {
        tenure_model::given_up_segment_is_freed_once_after_its_last_pin();
    }

    #[test]
    fn purged_segment_gets_no_further_pin() {
        tenure_model::purged_segment_gets_no_further_pin();
    }

    #[test]
    fn writer_is_never_inside_with_readers() {
        tenure_model::writer_is_never_inside_with_readers();
    }

    #[test]
    fn writers_and_a_reader_take_turns() {
        tenure_model::writers_and_a_reader_take_turns();
    }

    #[test]
    fn every_mark_is_offered() {
        tenure_model::every_mark_is_offered();
    }

    #[test]
    fn mark_during_park_is_seen_or_unparks() {
        tenure_model::mark_during_park_is_seen_or_unparks();
    }

    #[test]
    fn mark_during_exit_is_seen_or_starts_a_thread() {
        tenure_model::mark_during_exit_is_seen_or_starts_a_thread();
    }

    #[test]
    fn shared_object_with_a_pin_is_not_purged() {
        tenure_model::shared_object_with_a_pin_is_not_purged();
    }

    #[test]
    fn doomed_shared_object_is_freed_once_after_its_last_pin() {
        tenure_model::doomed_shared_object_is_freed_once_after_its_last_pin();
    }

    #[test]
    fn what_a_dead_process_has_is_cleared_beside_others() {
        tenure_model::what_a_dead_process_has_is_cleared_beside_others();
    }

    #[test]
    fn replaced_value_is_found_all_the_time() {
        tenure_model::replaced_value_is_found_all_the_time();
    }

    #[test]
    fn concurrent_insertions_leave_nothing_older() {
        tenure_model::concurrent_insertions_leave_nothing_older();
    }

    #[test]
    fn value_survives_the_death_of_the_process_that_replaces_it() {
        tenure_model::value_survives_the_death_of_the_process_that_replaces_it();
    }

    #[test]
    fn value_removed_while_it_is_replaced_is_gone_or_the_new_one() {
        tenure_model::value_removed_while_it_is_replaced_is_gone_or_the_new_one();
    }

    #[test]
    fn value_that_moves_to_another_entry_is_found_all_the_time() {
        tenure_model::value_that_moves_to_another_entry_is_found_all_the_time();
    }

    #[test]
    fn value_of_another_key_does_not_displace_the_keys_own() {
        tenure_model::value_of_another_key_does_not_displace_the_keys_own();
    }

    #[test]
    fn concurrent_first_insertions_leave_one_value() {
        tenure_model::concurrent_first_insertions_leave_one_value();
    }
}
