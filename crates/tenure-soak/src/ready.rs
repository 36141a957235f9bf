//! The ready-made objects: the cache that all threads share, and a locked file and a
//! secret of each thread.

use tenure::{LockedFile, PageRange, Pinned, SecretBuffer, VolatileCache, page_size};

use super::model::{self, Checked, Page, Seen, mismatch};
use super::peek;
use super::slot::temporary_file;
use super::step::{CACHE_KEYS, CacheUse, Count, MAX_SECRET_BYTES, SecretUse};
use super::verbs::Tools;

/// The keys are a thread and a number.
pub type Cache = VolatileCache<(usize, usize)>;

const FILE_PAGES: usize = 512;
const BUDGET_BYTES: usize = 1 << 20;

/// The contents of a cache's value: a pattern and a length.
type Value = (u64, usize);

pub struct Ready<'a> {
    thread: usize,
    cache: &'a Cache,
    /// The value that the thread inserted last under each key.
    inserted: [Option<Value>; CACHE_KEYS],
    held: Vec<(Pinned, Value)>,
    file: Option<(LockedFile, Vec<u64>)>,
    secret: Option<Secret>,
}

struct Secret {
    buffer: SecretBuffer,
    range: PageRange,
    expected: Vec<u8>,
    is_hidden: bool,
}

impl<'a> Ready<'a> {
    pub fn new(thread: usize, cache: &'a Cache) -> Self {
        Self {
            thread,
            cache,
            inserted: [None; CACHE_KEYS],
            held: Vec::new(),
            file: None,
            secret: None,
        }
    }

    pub fn use_cache(
        &mut self,
        tools: &mut Tools,
        what: CacheUse,
        key: usize,
        len: usize,
    ) -> Checked {
        let full_key = (self.thread, key);
        match what {
            CacheUse::Insert(priority) => {
                let value = (tools.patterns.u64(1..), len);
                let bytes = bytes_of(value);
                let answer = self.cache.insert_with(full_key, len, priority, |value| {
                    value.copy_from_slice(&bytes);
                });
                if tools.expect(answer, &[])?.is_some() {
                    self.inserted[key] = Some(value);
                }
            }
            CacheUse::Get | CacheUse::Hold => {
                if let Some(pinned) = self.cache.get(&full_key) {
                    let Some(value) = self.inserted[key] else {
                        return mismatch("the cache", "nothing", "a value");
                    };
                    check_value(&pinned, value)?;
                    if matches!(what, CacheUse::Hold) {
                        self.held.push((pinned, value));
                    }
                }
                if self.held.len() > 3 {
                    let (pinned, value) = self.held.remove(0);
                    check_value(&pinned, value)?;
                }
            }
            CacheUse::GetOrInsert => {
                let value = self.inserted[key].unwrap_or((tools.patterns.u64(1..), len));
                let make = || bytes_of(value);
                let pinned = self.cache.get_or_insert_with(full_key, make);
                self.inserted[key] = Some(value);
                check_value(&pinned, value)?;
            }
            CacheUse::Remove => {
                if self.cache.remove(&full_key) && self.inserted[key].is_none() {
                    return mismatch("the cache", "nothing to remove", "a value");
                }
                self.inserted[key] = None;
            }
        }
        Ok(())
    }

    pub fn use_file(&mut self, tools: &mut Tools, renew: bool) -> Checked {
        if renew || self.file.is_none() {
            self.file = None;
            self.file = map_file(tools)?;
        }
        let Some((file, patterns)) = &self.file else {
            return Ok(());
        };
        for _ in 0..24 {
            let index = tools.patterns.usize(..patterns.len());
            check_file_page(file, patterns, index)?;
        }
        tools.board.add(Count::PagesChecked, 24);
        let locked = tools.expect(file.locked_bytes(), &[])?.unwrap_or(0);
        if locked > file.len() {
            return mismatch("locked_bytes", file.len(), locked);
        }
        tools.expect(file.trim(), &[]).map(drop)
    }

    pub fn use_secret(&mut self, tools: &mut Tools, what: SecretUse, len: usize) -> Checked {
        let is_hidden = matches!(what, SecretUse::RenewHidden);
        if is_hidden || matches!(what, SecretUse::Renew) {
            self.check_secret()?;
            self.secret = None;
            self.secret = make_secret(tools, is_hidden)?;
        }
        let Some(secret) = &mut self.secret else {
            return Ok(());
        };
        let (buffer, expected) = (&mut secret.buffer, &mut secret.expected);
        match what {
            SecretUse::Extend => {
                let bytes = bytes_of((tools.patterns.u64(1..), len));
                let allowed: &[&str] = match expected.len() + len <= MAX_SECRET_BYTES {
                    true => &[],
                    false => &["out_of_bounds", "other"],
                };
                let answer = buffer.extend_from_slice(&bytes);
                if tools.expect(answer, allowed)?.is_some() {
                    expected.extend_from_slice(&bytes);
                }
            }
            SecretUse::Truncate => {
                buffer.truncate(len);
                expected.truncate(len);
            }
            SecretUse::Resize => {
                if tools.expect(buffer.resize(len, 7), &[])?.is_some() {
                    expected.resize(len, 7);
                }
            }
            SecretUse::Clear => {
                buffer.clear();
                expected.clear();
            }
            SecretUse::Renew | SecretUse::RenewHidden => {}
        }
        self.check_secret()
    }

    fn check_secret(&self) -> Checked {
        let Some(secret) = &self.secret else {
            return Ok(());
        };
        let (buffer, expected) = (&secret.buffer, &secret.expected);
        if buffer.as_slice() != expected.as_slice() || !buffer.ct_eq(expected) {
            let expected = format!("the {} bytes written", expected.len());
            let found = format!("{} other bytes", buffer.len());
            return mismatch("a secret", expected, found);
        }
        Ok(())
    }

    fn check_held(&self) -> Checked {
        let mut held = self.held.iter();
        held.try_for_each(|(pinned, value)| check_value(pinned, *value))
    }

    /// Checks the values that the thread holds, and its secret.
    pub fn check(&self) -> Checked {
        self.check_held()?;
        self.check_secret()
    }

    /// Checks that the secret and the file are locked.
    pub fn check_locks(&self) -> Checked {
        let secret = self
            .secret
            .as_ref()
            .map(|secret| ("a secret", secret.range));
        let file = self.file.as_ref();
        let file = file.map(|(file, _)| ("a locked file", file.range()));
        for (what, range) in secret.into_iter().chain(file) {
            let unlocked = (0..range.pages()).find(|&page| !peek::is_locked(range, page));
            if let Some(page) = unlocked {
                return mismatch(what, "locked", format!("page {page} is not"));
            }
        }
        Ok(())
    }

    /// Checks that in a child the cache is empty, pinned values stay, the file is not
    /// locked, and the secret is zeros.
    pub fn check_in_child(&self) -> Checked {
        let mut keys = 0..CACHE_KEYS;
        if keys.any(|key| self.cache.get(&(self.thread, key)).is_some()) {
            return mismatch("a parent's cache in a child", "nothing", "a value");
        }
        self.check_held()?;
        if let Some((file, patterns)) = &self.file {
            check_file_page(file, patterns, 0)?;
            let locked = file.locked_bytes();
            if !matches!(locked, Ok(0)) {
                return mismatch("a locked file in a child", "Ok(0)", format!("{locked:?}"));
            }
        }
        let Some(secret) = &self.secret else {
            return Ok(());
        };
        let wanted_len = match secret.is_hidden {
            true => 0,
            false => secret.expected.len(),
        };
        let bytes = secret.buffer.as_slice();
        if bytes.len() != wanted_len || bytes.iter().any(|&byte| byte != 0) {
            let found = format!("{} bytes, not all zeros or too many", bytes.len());
            return mismatch("a secret in a child", format!("{wanted_len} zeros"), found);
        }
        Ok(())
    }
}

fn map_file(tools: &mut Tools) -> Checked<Option<(LockedFile, Vec<u64>)>> {
    let patterns: Vec<u64> = (0..FILE_PAGES).map(|_| tools.patterns.u64(1..)).collect();
    let mapped = temporary_file(&patterns).and_then(|file| {
        // SAFETY: the file has no name, so that nothing truncates or writes it.
        unsafe { LockedFile::with_budget(&file, BUDGET_BYTES) }
    });
    let mapped = tools.expect(mapped, &tools.if_lock_limited("lock_limit"))?;
    Ok(mapped.map(|mapped| (mapped, patterns)))
}

fn make_secret(tools: &Tools, is_hidden: bool) -> Checked<Option<Secret>> {
    let buffer = match is_hidden {
        true => SecretBuffer::hidden_with_max_len(MAX_SECRET_BYTES),
        false => SecretBuffer::with_max_len(MAX_SECRET_BYTES),
    };
    let mut allowed = tools.if_lock_limited("lock_limit");
    if is_hidden && tenure::Features::get().memfd_secret.is_err() {
        allowed.push("unsupported");
    }
    let Some(buffer) = tools.expect(buffer, &allowed)? else {
        return Ok(None);
    };
    let start = buffer.as_slice().as_ptr().addr();
    let len = MAX_SECRET_BYTES.next_multiple_of(page_size());
    let range = PageRange::new(start, len);
    let range = range.or_else(|error| mismatch("a secret", "whole pages", error))?;
    Ok(Some(Secret {
        buffer,
        range,
        expected: Vec::new(),
        is_hidden,
    }))
}

fn check_file_page(file: &LockedFile, patterns: &[u64], index: usize) -> Checked {
    let bytes = &file.as_slice()[index * page_size()..][..page_size()];
    Page::new(patterns[index]).observe(Seen::Bytes(bytes))
}

fn bytes_of((pattern, len): Value) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(page_size())];
    for (index, page) in bytes.chunks_exact_mut(page_size()).enumerate() {
        model::fill(page, pattern.wrapping_add(index as u64));
    }
    bytes.truncate(len);
    bytes
}

fn check_value(bytes: &[u8], value: Value) -> Checked {
    if bytes == bytes_of(value) {
        return Ok(());
    }
    let expected = format!("{} bytes with the contents {:#018x}", value.1, value.0);
    let found = format!("{} other bytes", bytes.len());
    mismatch("a value of the cache", expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_with_another_byte_or_length_is_a_mismatch() {
        let mut bytes = bytes_of((77, 1003));
        assert_eq!(bytes.len(), 1003);
        check_value(&bytes, (77, 1003)).unwrap();
        bytes[1002] ^= 4;
        assert!(check_value(&bytes, (77, 1003)).is_err());
        assert!(check_value(&bytes[..1002], (77, 1003)).is_err());
    }
}
