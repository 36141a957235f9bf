//! Fuzzing of the cgroup parsers: with any text, and with text as the kernel
//! writes it.

use std::path::Path;

use super::{
    Events, MemoryCgroup, VERSION_1, VERSION_2, memory_group, mounts, parse_group, unified_group,
};
use crate::fuzzing::Input;

/// The input is a sequence of files separated by a NUL byte: the process's
/// groups, its mounts, the limit, the usage, and one for all other reads.
pub(crate) fn text(data: &[u8]) {
    let mut files = data.split(|&byte| byte == 0);
    let mut file = || files.next().unwrap_or_default();
    let (membership, mountinfo) = (file(), file());
    let [limit, usage, others] = [(); 3].map(|()| String::from_utf8_lossy(file()));
    for (version, own) in memory_group(membership)
        .into_iter()
        .chain(unified_group(membership).map(|own| (&VERSION_2, own)))
    {
        let directories = mounts::visible_directories(Path::new("/root"), mountinfo, version, own);
        assert!(directories.len() <= own.ancestors().count());
    }
    for version in [&VERSION_1, &VERSION_2] {
        let read = |name: &str| {
            let text = match name {
                name if name == version.limit => &limit,
                name if name == version.usage => &usage,
                _ => &others,
            };
            text.clone().into_owned()
        };
        if let Some(group) = parse_group(Path::new("/g"), version, read) {
            assert!(group.limit_bytes < 1 << 62);
        }
        let _ = Events::parse(version.name, read);
    }
}

pub(crate) fn written(data: &[u8]) {
    let mut input = Input(data);
    let [limit, usage, inactive, active, file, shared] = [(); 6].map(|()| input.number(62));
    let [hits, high, ooms] = [(); 3].map(|()| input.number(62));
    for version in [&VERSION_1, &VERSION_2] {
        let read = |name: &str| match name {
            name if name == version.limit => format!("{limit}\n"),
            name if name == version.usage => format!("{usage}\n"),
            "memory.stat" => format!(
                "anon 1\nswap{}9\n{}{file}\n{}{shared}\n{}{inactive}\n{}{active}\n",
                version.page_cache,
                version.page_cache,
                version.shared,
                version.inactive_file,
                version.active_file
            ),
            "memory.events" => format!("low 1\nhigh {high}\nmax {hits}\noom {ooms}\noom_kill 2\n"),
            "memory.oom_control" => format!("oom_kill_disable 0\nunder_oom 1\noom_kill {ooms}\n"),
            "memory.failcnt" => format!("{hits}\n"),
            "memory.memsw.failcnt" => format!("{high}\n"),
            name => panic!("{name} is not written"),
        };
        let group = parse_group(Path::new("/g"), version, read).unwrap();
        let found = [
            group.limit_bytes,
            group.usage_bytes,
            group.inactive_file_bytes,
            group.active_file_bytes,
            group.page_cache_bytes,
        ];
        let expected = [limit, usage, inactive, active, file.saturating_sub(shared)];
        assert_eq!(found.map(|bytes| bytes as u64), expected);
        let is_v1 = version.name == MemoryCgroup::V1;
        let events = Events::parse(version.name, read);
        assert_eq!(events.hits, hits + high);
        assert_eq!(events.ooms, if is_v1 { ooms } else { ooms + 2 });
        assert_eq!(events.is_out_of_memory, is_v1);
    }
}
