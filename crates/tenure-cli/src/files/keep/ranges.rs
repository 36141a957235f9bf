//! Which ranges are new.

use std::ops::Range;

/// Returns the parts of `ranges` that are in none of `others`. Both are in order.
pub fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            while others.next_if(|other| other.end <= at).is_some() {}
            let next = others.peek().map_or(range.end..range.end, |other| {
                other.start.clamp(at, range.end)..other.end.clamp(at, range.end)
            });
            if at < next.start {
                left.push(at..next.start);
            }
            at = next.end.max(next.start);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ranges_are_those_not_seen_before() {
        let ranges = |pairs: &[(u64, u64)]| -> Vec<Range<u64>> {
            pairs.iter().map(|&(start, end)| start..end).collect()
        };
        let check = |now: &[(u64, u64)], seen: &[(u64, u64)], new: &[(u64, u64)]| {
            let found = without(&ranges(now), &ranges(seen));
            assert_eq!(found, ranges(new), "{now:?} {seen:?}");
        };
        check(&[], &[(0, 9)], &[]);
        check(&[(0, 9)], &[], &[(0, 9)]);
        check(&[(0, 9)], &[(0, 9)], &[]);
        check(&[(0, 9)], &[(3, 5)], &[(0, 3), (5, 9)]);
        check(
            &[(2, 4), (6, 9)],
            &[(0, 3), (7, 8)],
            &[(3, 4), (6, 7), (8, 9)],
        );
        check(&[(2, 4), (6, 9)], &[(0, 20)], &[]);
        check(&[(5, 9)], &[(0, 2), (9, 12)], &[(5, 9)]);
        check(&[(0, 2), (4, 6), (8, 10)], &[(1, 9)], &[(0, 1), (9, 10)]);
    }
}
