//! The names of things as labels.

use std::{ffi::OsStr, fmt::Write as _, os::unix::ffi::OsStrExt as _};

use tenure_bench::text::is_control;

/// Stands before two hexadecimal digits of a byte, or before itself.
const ESCAPE: char = char::REPLACEMENT_CHARACTER;

/// Returns a name as text, another for each name: a label is UTF-8, and a folder's name may be
/// of any bytes. Names of printable characters stay as they are, so that they are the same in
/// the metrics of other programs.
pub fn distinct(name: &OsStr) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "{ESCAPE}{byte:02x}");
        }
    };
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                ESCAPE => text.extend([ESCAPE, ESCAPE]),
                _ if is_control(character) => {
                    escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => text.push(character),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_bytes_have_other_labels() {
        let names: [&[u8]; 9] = [
            b"/a\xff",
            b"/a\xfe",
            b"/a\xff\xfe",
            b"/a\\xff",
            "/a\u{fffd}".as_bytes(),
            "/a\u{fffd}ff".as_bytes(),
            b"/a\n",
            b"/a\\n",
            "/a\u{202e}".as_bytes(),
        ];
        let mut labels: Vec<_> = names.map(|name| distinct(OsStr::from_bytes(name))).into();
        assert_eq!(labels[0], "/a\u{fffd}ff");
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), names.len(), "{labels:?}");
        assert!(
            labels
                .iter()
                .flat_map(|label| label.chars())
                .all(|c| !is_control(c))
        );
    }

    #[test]
    fn name_of_printable_characters_is_its_label() {
        for name in ["/system.slice/a\\x2db.service", "/é \"b\"", "7"] {
            assert_eq!(distinct(OsStr::new(name)), name);
        }
    }
}
