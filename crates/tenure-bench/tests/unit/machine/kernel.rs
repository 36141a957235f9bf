use super::*;
use crate::{alone::alone, machine::memory::RawMapping};

#[test]
fn field_is_found_by_its_whole_name() {
    let text = "Rss:      12 kB\nLocked:          3 kB\nLockedElse: 9 kB\n";
    assert_eq!(parse_field(text, "Locked:"), Some(3 * 1024));
    assert_eq!(parse_field(text, "Pss:"), None);
    assert_eq!(parse_field("Rss: many kB\n", "Rss:"), None);
}

#[test]
fn huge_page_mode_is_the_one_in_brackets() {
    assert_eq!(mode_in("always [madvise] never\n"), "madvise");
    assert_eq!(mode_in("[always] madvise never\n"), "always");
    assert_eq!(mode_in(""), "never");
}

#[test]
fn touched_pages_are_present_and_counted_as_faults() {
    alone(|| {
        let page = page_size();
        let mut mapping = RawMapping::base_pages(8 * page).unwrap();
        let (start, len) = (mapping.start(), mapping.len());
        assert_eq!(present_pages(start, len).unwrap(), 0);
        let before = minor_faults();
        let bytes = mapping.bytes_mut();
        bytes[0] = 1;
        bytes[3 * page] = 1;
        assert!(minor_faults() >= before + 2);
        assert_eq!(present_pages(start, len).unwrap(), 2);
        assert_eq!(own_pages(start, len).unwrap(), 2);
        assert_eq!(mapping.bytes()[5 * page], 0);
        assert_eq!(present_pages(start, len).unwrap(), 3, "the zero page");
        assert_eq!(own_pages(start, len).unwrap(), 2);
        assert!(check_all_present(mapping.bytes()).is_err());
    });
}

#[test]
fn cpu_time_of_a_named_thread_is_found_while_it_lives() {
    const NAME: &str = "bench-cpu-time";
    let work = || cpu_time_of_thread(NAME).unwrap();
    let thread = thread::Builder::new().name(NAME.to_owned()).spawn(work);
    let is_counted = std::path::Path::new("/proc/self/schedstat").exists();
    assert_eq!(thread.unwrap().join().unwrap().is_some(), is_counted);
    assert_eq!(cpu_time_of_thread("no such thread").unwrap(), None);
}
