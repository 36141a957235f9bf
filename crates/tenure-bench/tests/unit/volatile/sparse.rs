use super::*;

#[test]
fn check_of_a_changed_page_fails() {
    let mut mapping = map(2 * GIB).unwrap();
    let check = |mapping: &RawMapping, contents| check(mapping.bytes(), &contents);
    check(&mapping, Contents::Intact).unwrap();
    mapping.bytes_mut()[GIB..][..page_size()].fill(0);
    check(&mapping, Contents::Intact).unwrap_err();
    check(&mapping, Contents::Unknown).unwrap();
    mapping.bytes_mut()[0] = 0;
    check(&mapping, Contents::Unknown).unwrap_err();
}
