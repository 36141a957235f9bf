//! Lines on standard error, made without a heap.

use std::fmt::{self, Write as _};

use crate::sys;

/// Text of one write, cut off at its end.
pub(crate) struct Line {
    bytes: [u8; Self::MOST_BYTES],
    len: usize,
}

impl Line {
    const MOST_BYTES: usize = 1024;

    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; Self::MOST_BYTES],
            len: 0,
        }
    }

    /// Adds text, as far as there is room.
    pub(crate) fn add(&mut self, text: fmt::Arguments<'_>) {
        // It is cut off, never refused.
        let _ = self.write_fmt(text);
    }

    /// Ends the line.
    pub(crate) fn end(&mut self) {
        self.len = self.len.min(Self::MOST_BYTES - 1);
        self.bytes[self.len] = b'\n';
        self.len += 1;
    }

    pub(crate) fn write_to(&self, fd: i32) {
        sys::write(fd, self.as_bytes());
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = Self::MOST_BYTES - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Says something to whoever started the program.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    line.add(format_args!("tenure: {text}"));
    line.end();
    line.write_to(libc::STDERR_FILENO);
}

/// Bytes, in the largest binary unit of which there is at least one.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            let tenths = (u128::from(bytes) * 10) >> shift;
            if tenths >= 10 {
                let (whole, tenth) = (tenths / 10, tenths % 10);
                return match tenth {
                    0 => write!(f, "{whole} {unit}"),
                    _ => write!(f, "{whole}.{tenth} {unit}"),
                };
            }
        }
        write!(f, "{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_off_and_still_ends() {
        let mut line = Line::new();
        line.add(format_args!("{:2000}", "x"));
        line.end();
        assert_eq!(line.as_bytes().len(), Line::MOST_BYTES);
        assert!(line.as_bytes().starts_with(b"x ") && line.as_bytes().ends_with(b" \n"));
    }

    #[test]
    fn bytes_have_a_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536 << 10, "1.5 MiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
