//! The mappings to free, and how several tasks share them. Runs in the helper.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The minimum length of a mapping that the tasks free; the kernel frees
/// shorter ones when the last task ends.
const MIN_BYTES: usize = 4 << 20;

/// The bytes that a task frees in one call.
const CHUNK_BYTES: usize = 32 << 20;

/// The maximum number of mappings that the tasks free; the kernel frees the
/// rest when the last task ends.
const MAX_MAPPINGS: usize = 2048;

/// Large accessible mappings of private anonymous memory, each with a mark up
/// to which tasks have claimed it. All zeros is a valid value: no mappings.
#[repr(C)]
pub(super) struct Shares {
    count: AtomicUsize,
    ranges: [Share; MAX_MAPPINGS],
}

#[repr(C)]
struct Share {
    start: AtomicUsize,
    end: AtomicUsize,
    /// The start of the next unclaimed chunk: a multiple of [`CHUNK_BYTES`], so
    /// that no huge page lies in two of them, except at first.
    next: AtomicUsize,
}

impl Shares {
    /// Parses `text`, the next part of `/proc/PID/maps`, and adds its mappings;
    /// `line` carries the state over from the part before.
    pub(super) fn add(&self, line: &mut Line, text: &[u8]) {
        for &byte in text {
            let Some((start, end)) = line.parse(byte) else {
                continue;
            };
            let count = self.count.load(Ordering::Relaxed);
            if end.saturating_sub(start) < MIN_BYTES {
                continue;
            }
            let Some(share) = self.ranges.get(count) else {
                return;
            };
            share.start.store(start, Ordering::Relaxed);
            share.end.store(end, Ordering::Relaxed);
            share
                .next
                .store(start & !(CHUNK_BYTES - 1), Ordering::Relaxed);
            self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Claims chunk after chunk, and passes start and end of each to `free`.
    pub(super) fn claim_each(&self, mut free: impl FnMut(usize, usize)) {
        for share in self.ranges.iter().take(self.count.load(Ordering::Relaxed)) {
            let end = share.end.load(Ordering::Relaxed);
            loop {
                let next = share.next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                if next >= end {
                    break;
                }
                let start = next.max(share.start.load(Ordering::Relaxed));
                free(start, next.wrapping_add(CHUNK_BYTES).min(end));
            }
        }
    }
}

/// A line of `/proc/PID/maps` as far as it has been parsed: `start-end perms
/// offset device inode name`.
#[derive(Default)]
pub(super) struct Line {
    start: usize,
    end: usize,
    field: Field,
    is_private: bool,
    is_accessible: bool,
    is_executable: bool,
    has_inode: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Field {
    #[default]
    Start,
    End,
    Permissions,
    Offset,
    Device,
    Inode,
    Name,
}

impl Line {
    /// Parses one more byte. At the end of a line, returns the bounds if the
    /// mapping is private anonymous memory. Executable memory is excluded,
    /// because the helper might be running it. Inaccessible memory is excluded,
    /// because it may be terabytes of reserved addresses, and walking them
    /// would free nothing.
    fn parse(&mut self, byte: u8) -> Option<(usize, usize)> {
        if byte == b'\n' {
            let line = std::mem::take(self);
            let is_memory = line.is_private && line.is_accessible && !line.has_inode;
            let is_freed = is_memory && !line.is_executable;
            let is_complete = matches!(line.field, Field::Inode | Field::Name);
            return (is_freed && is_complete).then_some((line.start, line.end));
        }
        match (self.field, byte) {
            (Field::Start, b'-') => self.field = Field::End,
            (Field::Start, digit) => self.start = self.start << 4 | hex(digit),
            (Field::End, b' ') => self.field = Field::Permissions,
            (Field::End, digit) => self.end = self.end << 4 | hex(digit),
            (Field::Permissions, b' ') => self.field = Field::Offset,
            (Field::Permissions, letter) => {
                self.is_private |= letter == b'p';
                self.is_accessible |= matches!(letter, b'r' | b'w');
                self.is_executable |= letter == b'x';
            }
            (Field::Offset, b' ') => self.field = Field::Device,
            (Field::Device, b' ') => self.field = Field::Inode,
            (Field::Inode, b' ') => self.field = Field::Name,
            (Field::Inode, digit) => self.has_inode |= digit != b'0',
            (Field::Offset | Field::Device | Field::Name, _) => {}
        }
        None
    }
}

fn hex(digit: u8) -> usize {
    let value = match digit {
        b'0'..=b'9' => digit.wrapping_sub(b'0'),
        _ => digit.wrapping_sub(b'a').wrapping_add(10),
    };
    value as usize & 0xf
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::error::MemoryKind;
    use crate::ground::sys::vma;
    use crate::{Mapping, PageRange};

    fn shares(parts: &[&str]) -> Box<Shares> {
        // SAFETY: all zeros is a valid value.
        let shares: Box<Shares> = unsafe { Box::new_zeroed().assume_init() };
        let mut line = Line::default();
        for part in parts {
            shares.add(&mut line, part.as_bytes());
        }
        shares
    }

    fn claimed(shares: &Shares) -> Vec<(usize, usize)> {
        let mut claimed = Vec::new();
        shares.claim_each(|start, end| claimed.push((start, end)));
        claimed
    }

    #[test]
    fn shares_hold_large_private_anonymous_mappings_only() {
        let maps = "\
            10000000-20000000 r-xp 00000000 08:01 77 /usr/bin/program\n\
            20000000-21000000 rw-p 00000000 00:00 0 \n\
            30000000-303ff000 rw-p 00000000 00:00 0 \n\
            40000000-41000000 rw-s 00000000 00:01 5 /dev/zero (deleted)\n\
            48000000-49000000 rw-s 00000000 00:00 0 \n\
            50000000-51000000 rwxp 00000000 00:00 0 \n\
            60000000-60400000 r--p 00000000 00:00 0                          [heap]\n\
            68000000-69000000 ---p 00000000 00:00 0 \n\
            70000000-71000000 rw-p 00000000 00:0f 1234 /anon_hugepage (deleted)\n\
            7ff000000000-7ff001000000 rw-p 00000000 00:00 0   [anon:a name]\n";
        let wanted = [
            (0x2000_0000, 0x2100_0000),
            (0x6000_0000, 0x6040_0000),
            (0x7ff0_0000_0000, 0x7ff0_0100_0000),
        ];
        assert_eq!(claimed(&shares(&[maps])), wanted);
        let (first, second) = maps.split_at(70);
        let bytes: Vec<&str> = second.split_inclusive(|_| true).collect();
        assert_eq!(
            claimed(&shares(&[&[first], bytes.as_slice()].concat())),
            wanted
        );
    }

    #[test]
    fn claims_by_several_tasks_cover_each_mapping_once() {
        let start = 3 * CHUNK_BYTES - (5 << 20);
        let end = 7 * CHUNK_BYTES + (1 << 20);
        let shares = shares(&[&format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n")]);
        let claimed_by_all = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| claimed_by_all.lock().unwrap().extend(claimed(&shares)));
            }
        });
        let mut chunks = claimed_by_all.into_inner().unwrap();
        chunks.sort_unstable();
        assert_eq!(chunks.first().unwrap().0, start);
        assert_eq!(chunks.last().unwrap().1, end);
        assert!(chunks.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert!(chunks[1..].iter().all(|chunk| chunk.0 % CHUNK_BYTES == 0));
    }

    #[test]
    fn mappings_past_maximum_are_skipped() {
        let maps: String = (1..=MAX_MAPPINGS + 10)
            .map(|at| {
                format!(
                    "{:x}-{:x} rw-p 00000000 00:00 0 \n",
                    at << 32,
                    (at << 32) + MIN_BYTES
                )
            })
            .collect();
        assert_eq!(claimed(&shares(&[&maps])).len(), MAX_MAPPINGS);
    }

    #[test]
    fn shares_of_running_process_are_private_anonymous() {
        let memory = Mapping::anonymous(64 << 20).map().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let claimed = claimed(&shares(&[&maps]));
        assert!(claimed.iter().any(|&(start, end)| {
            PageRange::between(start, end)
                .intersection(memory.range())
                .is_some()
        }));
        for (start, end) in claimed {
            // Other tests may have unmapped some concurrently.
            for vma in vma::within(PageRange::between(start, end)).unwrap() {
                assert_eq!(vma.kind, MemoryKind::PrivateAnonymous);
            }
        }
    }
}
