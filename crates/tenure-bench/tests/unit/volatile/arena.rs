use super::*;

#[test]
fn offered_buffers_are_volatile_and_full() {
    let mut buffers = offered(3, page_size(), OLD).unwrap();
    assert_eq!(buffers.len(), 3);
    for buffer in &mut buffers {
        assert!(buffer.is_volatile());
        let contents = buffer.unmark().unwrap();
        region::check(buffer, &contents, OLD).unwrap();
    }
}
