//! What there is to free, and how several tasks share it. Runs in the helper.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Shorter mappings are left to the last one who uses the memory.
const MIN_BYTES: usize = 4 << 20;

/// What a task frees in one call.
const CHUNK_BYTES: usize = 32 << 20;

/// How many mappings are shared among the tasks; what is past them is left to
/// the last one.
const COUNT: usize = 2048;

/// Large mappings of private anonymous memory that can be used, each with a mark up to which
/// tasks have taken it. All zeros is a value: no mappings.
#[repr(C)]
pub(super) struct Shares {
    count: AtomicUsize,
    ranges: [Share; COUNT],
}

#[repr(C)]
struct Share {
    start: AtomicUsize,
    end: AtomicUsize,
    /// The start of the next chunk, a multiple of [`CHUNK_BYTES`] (so that no
    /// huge page lies in two of them) except at first.
    next: AtomicUsize,
}

impl Shares {
    /// Adds what `/proc/PID/maps` says in `text`, a part of it, after what
    /// `line` remembers of the part before.
    pub(super) fn add(&self, line: &mut Line, text: &[u8]) {
        for &byte in text {
            let Some((start, end)) = line.read(byte) else {
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

    /// Hands every chunk that no task has had to `free`: start and end.
    pub(super) fn take_each(&self, mut free: impl FnMut(usize, usize)) {
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

/// A line of `/proc/PID/maps` as far as it has been read:
/// `start-end perms offset device inode name`.
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
    /// Reads one more byte. At the end of the line of private anonymous memory
    /// answers where it is. What can be executed is none: it might be what the
    /// helper runs. Nor is what nobody has access to: that may be terabytes of
    /// reserved addresses, which would be gone through in vain.
    fn read(&mut self, byte: u8) -> Option<(usize, usize)> {
        if byte == b'\n' {
            let line = std::mem::take(self);
            let is_memory = line.is_private && line.is_accessible && !line.has_inode;
            let is_ours = is_memory && !line.is_executable;
            let is_whole = matches!(line.field, Field::Inode | Field::Name);
            return (is_ours && is_whole).then_some((line.start, line.end));
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
        // SAFETY: all zeros is a value.
        let shares: Box<Shares> = unsafe { Box::new_zeroed().assume_init() };
        let mut line = Line::default();
        for part in parts {
            shares.add(&mut line, part.as_bytes());
        }
        shares
    }

    fn taken(shares: &Shares) -> Vec<(usize, usize)> {
        let mut taken = Vec::new();
        shares.take_each(|start, end| taken.push((start, end)));
        taken
    }

    #[test]
    fn takes_large_private_anonymous_memory_alone() {
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
        assert_eq!(taken(&shares(&[maps])), wanted);
        let (first, second) = maps.split_at(70);
        let bytes: Vec<&str> = second.split_inclusive(|_| true).collect();
        assert_eq!(
            taken(&shares(&[&[first], bytes.as_slice()].concat())),
            wanted
        );
    }

    #[test]
    fn chunks_cover_each_mapping_once() {
        let start = 3 * CHUNK_BYTES - (5 << 20);
        let end = 7 * CHUNK_BYTES + (1 << 20);
        let shares = shares(&[&format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n")]);
        let taken_by_all = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| taken_by_all.lock().unwrap().extend(taken(&shares)));
            }
        });
        let mut chunks = taken_by_all.into_inner().unwrap();
        chunks.sort_unstable();
        assert_eq!(chunks.first().unwrap().0, start);
        assert_eq!(chunks.last().unwrap().1, end);
        assert!(chunks.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert!(chunks[1..].iter().all(|chunk| chunk.0 % CHUNK_BYTES == 0));
    }

    #[test]
    fn more_mappings_than_there_is_room_for_are_left() {
        let maps: String = (1..=COUNT + 10)
            .map(|at| {
                format!(
                    "{:x}-{:x} rw-p 00000000 00:00 0 \n",
                    at << 32,
                    (at << 32) + MIN_BYTES
                )
            })
            .collect();
        assert_eq!(taken(&shares(&[&maps])).len(), COUNT);
    }

    #[test]
    fn agrees_with_the_running_process() {
        let memory = Mapping::anonymous(64 << 20).map().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let taken = taken(&shares(&[&maps]));
        assert!(taken.iter().any(|&(start, end)| {
            PageRange::between(start, end)
                .intersection(memory.range())
                .is_some()
        }));
        for (start, end) in taken {
            // What other tests have unmapped meanwhile is not there.
            for vma in vma::within(PageRange::between(start, end)).unwrap() {
                assert_eq!(vma.kind, MemoryKind::PrivateAnonymous);
            }
        }
    }
}
