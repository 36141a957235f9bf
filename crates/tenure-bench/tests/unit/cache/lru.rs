use super::*;

#[test]
fn key_used_longest_ago_goes_first() {
    let mut lru = Lru::new(5, 3);
    for key in [0, 1, 2] {
        assert!(!lru.hit(key));
    }
    assert!(lru.hit(0));
    // 1 is the oldest.
    assert!(!lru.hit(3));
    assert!(lru.hit(0) && lru.hit(2) && lru.hit(3));
    assert!(!lru.hit(1));
    assert!(!lru.hit(0) && lru.hit(1));
}

#[test]
fn lru_agrees_with_a_list() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut lru, mut list) = (Lru::new(30, 7), Vec::new());
    for _ in 0..10_000 {
        let key = rng.usize(..30);
        let is_known = list.contains(&key);
        assert_eq!(lru.hit(key), is_known);
        list.retain(|&known| known != key);
        list.push(key);
        if list.len() > 7 {
            list.remove(0);
        }
    }
}
