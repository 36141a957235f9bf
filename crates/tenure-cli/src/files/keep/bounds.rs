//! How much may be kept.

use tenure::Headroom;

use crate::files::size_text;

/// The most files that have a part of the budget each: a thread watches over each.
const MAX_BUDGETED_FILES: usize = 256;

/// The bounds at a time: the budget, and the headroom of what is not locked yet.
pub struct Bounds {
    budget: Option<u64>,
    locked: u64,
    headroom: u64,
    limit: String,
}

impl Bounds {
    /// Returns the bounds while so many bytes are locked already.
    pub fn now(budget: Option<u64>, locked: u64) -> tenure::Result<Self> {
        let headroom = Headroom::now()?;
        Ok(Self {
            budget,
            locked,
            headroom: (headroom.bytes - headroom.bytes / 8) as u64,
            limit: headroom.limit.to_string(),
        })
    }

    /// Says why so many files, which are so long together, cannot be kept.
    pub fn check(&self, total: u64, count: usize) -> Result<(), String> {
        let budget = self.budget.unwrap_or(total);
        if budget < total && count > MAX_BUDGETED_FILES {
            return Err(format!(
                "{count} files of {} do not fit into a budget of {}: a budget that is smaller \
                 than the files is for {MAX_BUDGETED_FILES} files at most",
                size_text(total),
                size_text(budget)
            ));
        }
        // Locked pages cannot be reclaimed: past the limit of a cgroup the kernel kills.
        let need = budget.min(total).saturating_sub(self.locked);
        if need > self.headroom {
            return Err(format!(
                "{} may have to stay in memory, and {} leaves {} after an eighth for others: \
                 raise that limit, free memory, or give a smaller --budget",
                size_text(need),
                self.limit,
                size_text(self.headroom)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beyond_the_bounds_are_refused() {
        let check = |budget, locked, total, count, expected: Option<&str>| {
            let bounds = Bounds {
                budget,
                locked,
                headroom: 1000,
                limit: "the machine".to_owned(),
            };
            let found = bounds.check(total, count);
            match expected {
                None => assert_eq!(found, Ok(())),
                Some(text) => assert!(
                    found.as_ref().is_err_and(|why| why.contains(text)),
                    "{found:?}"
                ),
            }
        };
        check(None, 0, 1000, 1000, None);
        check(None, 0, 1001, 1, Some("the machine leaves"));
        check(None, 500, 1500, 1, None);
        check(Some(1000), 0, 5000, 256, None);
        check(Some(1000), 0, 5000, 257, Some("256 files at most"));
        check(Some(1000), 0, 1000, 257, None);
        check(Some(1001), 0, 5000, 1, Some("the machine leaves"));
    }
}
