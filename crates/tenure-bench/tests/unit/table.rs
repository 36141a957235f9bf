use super::*;

#[test]
fn header_is_broken_at_spaces() {
    assert_eq!(in_short_lines("caller waits", 18), "caller waits");
    assert_eq!(
        in_short_lines("times as fast as mlock before each read", 18),
        "times as fast as\nmlock before each\nread"
    );
}
