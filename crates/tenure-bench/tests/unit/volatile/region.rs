use super::*;

#[test]
fn check_of_contents_that_differ_from_the_outcome_fails() {
    let page = page_size();
    let mut region = advised(KEPT)(3 * page).unwrap();
    let second = PageRange::new(region.bytes().unwrap().as_ptr() as usize + page, page).unwrap();
    let purged = Contents::Purged(vec![second]);
    region.bytes().unwrap().fill(7);
    check(&mut region, &Contents::Intact, 7).unwrap();
    check(&mut region, &Contents::Unknown, 7).unwrap();
    check(&mut region, &Contents::Discarded, 7).unwrap_err();
    check(&mut region, &purged, 7).unwrap_err();
    region.bytes().unwrap()[page..2 * page].fill(0);
    check(&mut region, &purged, 7).unwrap();
    check(&mut region, &Contents::Unknown, 7).unwrap();
    check(&mut region, &Contents::Intact, 7).unwrap_err();
    region.bytes().unwrap()[..page].fill(0);
    check(&mut region, &purged, 7).unwrap_err();
    region.bytes().unwrap()[0] = 3;
    check(&mut region, &Contents::Unknown, 7).unwrap_err();
}
