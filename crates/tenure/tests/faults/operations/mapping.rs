//! Mappings of every kind.

use tenure::{
    Access, HugePages, LockMode, Mapping, MappingBuilder, MemfdPages, MmapRequest, PageRange,
    page_size,
};

use super::super::case::{Case, again};
use super::super::common::is_zero;
use super::Group;

pub const ALL: Group = &[
    ("map_anonymous", map_anonymous),
    ("map_gib", map_gib),
    ("map_shared", map_shared),
    ("map_memfd", map_memfd),
    ("map_file", map_file),
    ("map_locked_now", |case| map_locked(case, LockMode::Now)),
    ("map_locked_on_fault", |case| {
        map_locked(case, LockMode::OnFault)
    }),
    ("mmap_request", mmap_request),
];

const LEN: usize = 64 << 10;

fn map(case: &Case, builder: &MappingBuilder<'_>) -> Mapping {
    case.attempt_twice(|| builder.clone().map())
}

fn map_anonymous(case: &Case) {
    let builder = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
    let memory = map(case, &builder.no_dump().wipe_on_fork());
    assert!(is_zero(memory.range()));
    drop(memory);
    drop(map(
        case,
        &Mapping::anonymous(4 << 20).huge_pages(HugePages::Always),
    ));
}

fn map_gib(case: &Case) {
    drop(map(case, &Mapping::anonymous(1 << 30)));
}

fn map_shared(case: &Case) {
    assert!(is_zero(map(case, &Mapping::shared_anonymous(LEN)).range()));
}

fn map_memfd(case: &Case) {
    assert!(is_zero(
        map(case, &Mapping::memfd(LEN, MemfdPages::Base)).range()
    ));
    drop(map(case, &Mapping::memfd(LEN, MemfdPages::Base).private()));
}

fn map_file(case: &Case) {
    let file = super::super::common::file(LEN);
    let memory = map(case, &unsafe { Mapping::file(&file) }.read_write());
    for (index, &byte) in memory.as_slice().iter().enumerate() {
        assert_eq!(usize::from(byte), index % 251);
    }
    drop(map(
        case,
        &unsafe { Mapping::file(&file) }
            .private()
            .offset(page_size() as u64),
    ));
}

fn map_locked(case: &Case, mode: LockMode) {
    let memory = case.attempt_twice(|| Mapping::anonymous(LEN).map_locked(mode));
    assert_eq!(
        super::super::common::lock_modes(memory.range()),
        [Some(mode); 16]
    );
}

fn mmap_request(case: &Case) {
    let request = MmapRequest {
        len: LEN,
        prot: (libc::PROT_READ | libc::PROT_WRITE) as u32,
        flags: (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u32,
        no_dump: true,
        wipe_on_fork: true,
        lock: Some(LockMode::OnFault),
        populate: Some(Access::Write),
        ..MmapRequest::default()
    };
    let range = case.attempt(|| PageRange::mmap(&request));
    let range = range.unwrap_or_else(|_| again(PageRange::mmap(&request)));
    assert!(is_zero(range));
    unsafe { range.munmap() }.unwrap();
}
