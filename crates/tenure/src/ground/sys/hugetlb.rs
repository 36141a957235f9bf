//! The hugetlb pools: `/sys/kernel/mm/hugepages`.

use std::path::Path;

/// Returns how many huge pages of `page_bytes` are available: those free in the
/// pool, and those by which it may grow (`nr_overcommit_hugepages`). `None`
/// where there is no such pool or it cannot be read.
///
/// Free pages that mappings have reserved count too, because this one may have
/// reserved them.
pub(crate) fn free_pages(page_bytes: usize) -> Option<usize> {
    free_pages_in(Path::new("/sys/kernel/mm/hugepages"), page_bytes)
}

fn free_pages_in(pools: &Path, page_bytes: usize) -> Option<usize> {
    let pool = pools.join(format!("hugepages-{}kB", page_bytes / 1024));
    let pages = |file| {
        let text = std::fs::read_to_string(pool.join(file)).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let free = pages("free_hugepages")?;
    let max_surplus = pages("nr_overcommit_hugepages").unwrap_or(0);
    let surplus = pages("surplus_hugepages").unwrap_or(0);
    Some(free.saturating_add(max_surplus.saturating_sub(surplus)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn free_pages_include_overcommit() {
        let pools = tempfile::tempdir().unwrap();
        let pool = pools.path().join("hugepages-2048kB");
        fs::create_dir(&pool).unwrap();
        let found = || free_pages_in(pools.path(), 2 << 20);
        assert_eq!(found(), None);
        fs::write(pool.join("free_hugepages"), "3\n").unwrap();
        assert_eq!(found(), Some(3));
        fs::write(pool.join("nr_overcommit_hugepages"), "5\n").unwrap();
        assert_eq!(found(), Some(8));
        fs::write(pool.join("surplus_hugepages"), "4\n").unwrap();
        assert_eq!(found(), Some(4));
        // The overcommit setting was lowered after the pool had grown.
        fs::write(pool.join("surplus_hugepages"), "9\n").unwrap();
        assert_eq!(found(), Some(3));
        assert_eq!(free_pages_in(pools.path(), 1 << 30), None);
    }

    #[test]
    fn free_pages_on_this_machine_exist_if_pool_does() {
        assert_eq!(
            free_pages(2 << 20).is_some(),
            Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists()
        );
        assert_eq!(free_pages(1234), None);
    }
}
