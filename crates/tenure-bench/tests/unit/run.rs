use super::*;

#[test]
fn progress_template_is_valid() {
    progress_bar(Name::Free, 1).finish_and_clear();
}
