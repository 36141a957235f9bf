use super::*;

#[test]
fn progress_template_is_valid() {
    progress_bar(Name::Release, 1).finish_and_clear();
}
