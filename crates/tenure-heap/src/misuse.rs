//! Aborts on addresses that are not live blocks, before memory is damaged.

use crate::slot::{LIVE, kind};
use crate::space::{Place, SPACE};
use crate::sys;

/// Returns the place of a block that the caller says is live.
#[inline]
pub(crate) fn place_of(ptr: *const u8, call: &str) -> Place {
    match SPACE.place_at(ptr.addr()) {
        Some(place) => place,
        None => abort(ptr, call, "no block begins there"),
    }
}

/// Aborts unless `state` is that of a live block.
#[inline]
pub(crate) fn expect_live(state: u32, ptr: *const u8, call: &str) {
    if kind(state) != LIVE {
        abort(ptr, call, "the block has been freed already");
    }
}

#[cold]
fn abort(ptr: *const u8, call: &str, what: &str) -> ! {
    let mut digits = [0; 16];
    let parts: [&[u8]; 7] = [
        b"tenure: ",
        call.as_bytes(),
        b" of 0x",
        hexadecimal(ptr.addr(), &mut digits),
        b": ",
        what.as_bytes(),
        b"\n",
    ];
    sys::abort_with(&parts)
}

fn hexadecimal(mut number: usize, digits: &mut [u8; 16]) -> &[u8] {
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b"0123456789abcdef"[number % 16];
        number /= 16;
        if number == 0 {
            return &digits[first..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_matches_format() {
        for number in [0, 9, 0x7f12_3456_7000, usize::MAX] {
            assert_eq!(
                hexadecimal(number, &mut [0; 16]),
                format!("{number:x}").as_bytes()
            );
        }
    }
}
