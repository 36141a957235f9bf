//! The report of unmarking.

use crate::ground::range::PageRange;

/// Says whether the contents of a volatile range are intact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the contents of purged pages are gone"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// These pages were purged, in order of address; all others are as they were. They
    /// read as zeros, except where the protection of a range had ended: all of such a range
    /// is reported, and its contents are left as they are, some perhaps zeros.
    Purged(Vec<PageRange>),
}

impl Outcome {
    /// Adds the report of the part that follows.
    pub(super) fn append(&mut self, next: Self) {
        match (self, next) {
            (_, Self::Intact) => {}
            (Self::Purged(runs), Self::Purged(mut more)) => {
                if let (Some(last), Some(first)) = (runs.last_mut(), more.first_mut())
                    && last.end() == first.start()
                {
                    *first = PageRange::between(last.start(), first.end());
                    runs.pop();
                }
                runs.append(&mut more);
            }
            (intact, purged) => *intact = purged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn runs_of_touching_parts_are_joined() {
        let purged = |from, to| {
            Outcome::Purged(vec![PageRange::between(
                from * page_size(),
                to * page_size(),
            )])
        };
        let mut all = Outcome::Intact;
        for next in [purged(1, 2), Outcome::Intact, purged(2, 4), purged(5, 6)] {
            all.append(next);
        }
        let Outcome::Purged(runs) = all else {
            panic!("{all:?}");
        };
        assert_eq!(
            runs.iter().map(|run| run.pages()).collect::<Vec<_>>(),
            [3, 1]
        );
    }
}
