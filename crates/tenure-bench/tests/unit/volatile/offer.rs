use super::*;

#[test]
fn restore_first_bytes_of_an_unwritten_page_fails() {
    let mut bytes = vec![OLD; 2 * page_size()];
    bytes[0] = WRITTEN;
    restore_first_bytes(&mut bytes[..page_size()]).unwrap();
    assert_eq!(bytes[0], OLD);
    restore_first_bytes(&mut bytes).unwrap_err();
}
