use tenure::HeadroomLimit;

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn size_that_fits_is_left_alone() {
    let fitted = Headroom::of_bytes(100 * MIB).fit(25 * MIB, 4, MIB).unwrap();
    assert_eq!(fitted.len, 25 * MIB);
    assert_eq!(fitted.note, None);
}

#[test]
fn size_that_does_not_fit_is_cut_to_whole_steps_and_noted() {
    let fitted = Headroom::of_bytes(103 * MIB)
        .fit(80 * MIB, 4, 10 * MIB)
        .unwrap();
    assert_eq!(fitted.len, 20 * MIB);
    assert_eq!(
        fitted.note.unwrap(),
        "Size: 20 MiB instead of 80 MiB, because MemAvailable leaves 103 MiB."
    );
}

#[test]
fn note_names_the_cgroup_that_leaves_too_little() {
    let limit = HeadroomLimit::Cgroup {
        path: "/sys/fs/cgroup/jobs".into(),
        limit_bytes: 256 * MIB,
        used_bytes: 100 * MIB,
    };
    let bytes = 156 * MIB;
    let headroom = Headroom(tenure::Headroom { bytes, limit });
    let fitted = headroom.fit(80 * MIB, 4, MIB).unwrap();
    assert_eq!(
        fitted.note.unwrap(),
        "Size: 39 MiB instead of 80 MiB, because the memory cgroup /sys/fs/cgroup/jobs \
         (limit 256 MiB, 100 MiB in use) leaves 156 MiB."
    );
}

#[test]
fn size_of_less_than_a_step_is_an_error() {
    let error = Headroom::of_bytes(10 * MIB)
        .fit(80 * MIB, 4, 10 * MIB)
        .unwrap_err();
    assert!(error.to_string().contains("at least 10 MiB needed"));
}

#[test]
fn page_may_be_locked_and_the_address_space_may_not() {
    assert!(!may_lock(usize::MAX / 2));
    let fitted = fit_to_lock(tenure::page_size(), tenure::page_size()).unwrap();
    assert_eq!(fitted.len, tenure::page_size());
}
