//! Keys from the bytes that a terminal sends: `ESC [ parameters final`, `ESC O final`, or a
//! byte.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const ESCAPE: u8 = 0x1b;

/// The greatest length of a sequence; those of keys are shorter.
const MAX_LEN: usize = 32;

/// The part of a sequence that has come.
#[derive(Debug, Default)]
pub struct Decoder(Vec<u8>);

impl Decoder {
    /// Returns the keys that end in these bytes. Sequences of others are left out.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<KeyEvent> {
        let keys = bytes.iter().filter_map(|&byte| self.step(byte));
        keys.collect()
    }

    /// Ends the sequence that has begun: Escape alone is a key.
    pub fn end(&mut self) -> Option<KeyEvent> {
        let is_escape = self.0 == [ESCAPE];
        self.0.clear();
        is_escape.then(|| key(KeyCode::Esc))
    }

    fn step(&mut self, byte: u8) -> Option<KeyEvent> {
        match (self.0.as_slice(), byte) {
            (_, ESCAPE) => {
                let ended = self.end();
                self.0.push(ESCAPE);
                ended
            }
            // A control character ends a sequence.
            ([], _) | (_, ..0x20) => {
                self.0.clear();
                character(byte)
            }
            ([ESCAPE], b'[' | b'O') | ([_, _, ..], 0x20..0x40) if self.0.len() < MAX_LEN => {
                self.0.push(byte);
                None
            }
            // Alt and a key, or the end of a sequence.
            (sequence, _) => {
                let parameters = sequence.get(2..);
                let found = parameters.and_then(|parameters| code(parameters, byte));
                self.0.clear();
                found.map(key)
            }
        }
    }
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn character(byte: u8) -> Option<KeyEvent> {
    match byte {
        0x03 => Some(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        b' '..=b'~' => Some(key(KeyCode::Char(char::from(byte)))),
        _ => None,
    }
}

/// Returns the key of a whole sequence; the second parameter, if any, says what else is held.
fn code(parameters: &[u8], last: u8) -> Option<KeyCode> {
    let first = parameters.split(|&byte| byte == b';').next();
    Some(match (last, first.unwrap_or_default()) {
        (b'A', _) => KeyCode::Up,
        (b'B', _) => KeyCode::Down,
        (b'H', _) | (b'~', b"1" | b"7") => KeyCode::Home,
        (b'F', _) | (b'~', b"4" | b"8") => KeyCode::End,
        (b'~', b"5") => KeyCode::PageUp,
        (b'~', b"6") => KeyCode::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(parts: &[&[u8]]) -> Vec<KeyCode> {
        let mut decoder = Decoder::default();
        let mut keys: Vec<_> = parts.iter().flat_map(|part| decoder.decode(part)).collect();
        keys.extend(decoder.end());
        keys.iter().map(|key| key.code).collect()
    }

    #[test]
    fn sequences_are_keys_however_they_are_cut() {
        use KeyCode::{Char, Down, End, Home, PageDown, PageUp, Up};
        let bytes = b"\x1b[A\x1bOB\x1b[1;5A\x1b[5~\x1b[6;2~\x1b[H\x1bOF\x1b[1~\x1b[8~q";
        let expected = [
            Up,
            Down,
            Up,
            PageUp,
            PageDown,
            Home,
            End,
            Home,
            End,
            Char('q'),
        ];
        assert_eq!(codes(&[bytes]), expected);
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(codes(&single), expected);
    }

    #[test]
    fn escape_alone_is_a_key_and_half_a_sequence_is_none() {
        assert_eq!(codes(&[b"\x1b"]), [KeyCode::Esc]);
        assert_eq!(codes(&[b"\x1b\x1b[A"]), [KeyCode::Esc, KeyCode::Up]);
        assert_eq!(codes(&[b"\x1b[<"]), []);
        // The next key counts.
        assert_eq!(codes(&[b"\x1b[<\x1b[B"]), [KeyCode::Down]);
    }

    #[test]
    fn other_sequences_and_bytes_are_no_keys() {
        // A click, a paste, a function key, Alt and a key, a character of several bytes.
        for other in [
            &b"\x1b[<0;3;4M"[..],
            b"\x1b[200~",
            b"\x1bOP",
            b"\x1bq",
            b"\xc3\xa9\x7f\t",
        ] {
            assert_eq!(codes(&[other]), [], "{other:?}");
        }
        let endless = [b"\x1b[".as_slice(), &[b'0'; 1000]].concat();
        let mut decoder = Decoder::default();
        decoder.decode(&endless);
        assert!(decoder.0.len() <= MAX_LEN);
    }

    #[test]
    fn control_c_counts_within_a_sequence() {
        let keys = Decoder::default().decode(b"\x1b[<\x03");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keys, [control_c]);
    }
}
