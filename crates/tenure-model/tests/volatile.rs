//! Each model, run through all its interleavings.

/// By this name they are passed over where they would only be run again.
mod loom {
    #[test]
    fn what_is_unmarked_is_neither_offered_nor_taken() {
        tenure_model::what_is_unmarked_is_neither_offered_nor_taken();
    }

    #[test]
    fn marking_again_changes_no_more_than_the_mark() {
        tenure_model::marking_again_changes_no_more_than_the_mark();
    }

    #[test]
    fn what_is_unmarked_is_not_purged() {
        tenure_model::what_is_unmarked_is_not_purged();
    }

    #[test]
    fn no_mark_is_missed() {
        tenure_model::no_mark_is_missed();
    }

    #[test]
    fn a_keeper_falling_asleep_sees_the_mark_or_is_woken() {
        tenure_model::a_keeper_falling_asleep_sees_the_mark_or_is_woken();
    }

    #[test]
    fn a_keeper_that_goes_leaves_no_mark_behind() {
        tenure_model::a_keeper_that_goes_leaves_no_mark_behind();
    }
}
