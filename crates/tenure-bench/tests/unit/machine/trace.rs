use super::*;

#[test]
fn trace_is_gone_once_unmapped() {
    let trace = Trace::new().unwrap();
    let mapping = Trace::map(&trace.path()).unwrap();
    assert_eq!(
        fcntl_add_seals(&trace.0, SealFlags::WRITE),
        Err(Errno::BUSY)
    );
    drop(mapping);
    trace.wait_until_gone().unwrap();
}
