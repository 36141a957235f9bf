//! The ledger of admitted memory is balanced once nothing is admitted any more.

use tenure::headroom;

/// Asserts that nothing is admitted: a known amount that is admitted now is all that there
/// is. So bytes that were never given back show, and bytes that were given back twice.
pub fn assert_balanced() {
    const BYTES: usize = 16 << 20;
    let admission = headroom::admit(BYTES).expect("16 MiB");
    let others = headroom::outstanding_bytes() as isize - BYTES as isize;
    drop(admission);
    assert!(others == 0, "{others} bytes are admitted by nobody");
}
