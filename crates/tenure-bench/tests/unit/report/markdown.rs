use super::*;

#[test]
fn escape_of_markdown_characters_puts_backslashes() {
    assert_eq!(escape("MADV_FREE | <b>*\n"), "MADV\\_FREE \\| \\<b\\>\\* ");
}
