use super::*;

fn check_all<R: Region, M>(make: Make<R, M>) {
    for others in [0, 1, 1_500] {
        let live = Live::make(make, others).unwrap();
        assert_eq!((live.own.len(), live.others.len()), (OWN, others));
        live.check().unwrap();
    }
    let mut live = Live::make(make, 2).unwrap();
    live.own[3].bytes().unwrap()[5] = 0;
    live.check().unwrap_err();
}

#[test]
fn live_buffers_with_a_changed_byte_fail_their_check() {
    check_all(buffers);
}

#[test]
fn live_ranges_with_a_changed_byte_fail_their_check() {
    check_all(RawRange::pages);
}
