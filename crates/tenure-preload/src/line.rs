//! Lines on standard error, formatted without a heap.

use std::fmt::{self, Write as _};

use crate::sys;

/// The text of one write, truncated if it is too long.
pub(crate) struct Line {
    bytes: [u8; Self::MAX_BYTES],
    len: usize,
}

impl Line {
    const MAX_BYTES: usize = 1024;

    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; Self::MAX_BYTES],
            len: 0,
        }
    }

    /// Adds text, up to the capacity of the line.
    pub(crate) fn add(&mut self, text: fmt::Arguments<'_>) {
        // Text that does not fit is truncated, so writing never fails.
        let _ = self.write_fmt(text);
    }

    /// Ends the line.
    pub(crate) fn end(&mut self) {
        self.len = self.len.min(Self::MAX_BYTES - 1);
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
        let free_bytes = Self::MAX_BYTES - self.len;
        let part = &text.as_bytes()[..text.len().min(free_bytes)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Prints a message to standard error.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    line.add(format_args!("tenure: {text}"));
    line.end();
    line.write_to(libc::STDERR_FILENO);
}

/// Bytes, displayed in the largest binary unit of which there is at least one.
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
    fn long_line_is_truncated_with_newline() {
        let mut line = Line::new();
        line.add(format_args!("{:2000}", "x"));
        line.end();
        assert_eq!(line.as_bytes().len(), Line::MAX_BYTES);
        assert!(line.as_bytes().starts_with(b"x ") && line.as_bytes().ends_with(b" \n"));
    }

    #[test]
    fn bytes_display_has_binary_unit() {
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
