//! What stands on the verbs: the cache that all threads share, and a locked file
//! and a secret of each thread's own.

use std::io::Write as _;

use tenure::{LockedFile, Pinned, SecretBuffer, VolatileCache, page_size};

use super::{
    board::Count,
    model::{self, Page, Seen, Wrong},
    step::{CACHE_KEYS, CacheUse, SECRET_BYTES, SecretUse},
    verbs::Tools,
};

/// Thread and key.
pub type Cache = VolatileCache<(usize, usize)>;

const FILE_PAGES: usize = 512;
const BUDGET_BYTES: usize = 1 << 20;

/// What a thread has of these, and knows of them.
pub struct Ready<'a> {
    thread: usize,
    cache: &'a Cache,
    /// Of each key what was put in last: a stamp and how long it is.
    inserted: [Option<(u64, usize)>; CACHE_KEYS],
    held: Vec<(Pinned, u64, usize)>,
    file: Option<(LockedFile, Vec<u64>)>,
    secret: Option<(SecretBuffer, Vec<u8>, bool)>,
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
        key: usize,
        len: usize,
        what: CacheUse,
    ) -> Result<(), Wrong> {
        let full_key = (self.thread, key);
        match what {
            CacheUse::Insert(priority) => {
                let stamp = tools.stamps.u64(1..);
                let bytes = bytes_of(stamp, len);
                let answer = self.cache.insert_with_priority(full_key, &bytes, priority);
                tools.expect(answer, &[])?;
                self.inserted[key] = Some((stamp, len));
            }
            CacheUse::Get | CacheUse::Hold => {
                let found = self.cache.get(&full_key);
                if let Some(value) = found {
                    let Some((stamp, len)) = self.inserted[key] else {
                        return Err(Wrong::new("the cache", "nothing", "a value"));
                    };
                    check_value(&value, stamp, len)?;
                    if matches!(what, CacheUse::Hold) {
                        self.held.push((value, stamp, len));
                    }
                }
                if self.held.len() > 3 {
                    let (value, stamp, len) = self.held.remove(0);
                    check_value(&value, stamp, len)?;
                }
            }
            CacheUse::GetOrInsert => {
                let (stamp, len) = self.inserted[key].unwrap_or((tools.stamps.u64(1..), len));
                let value = self
                    .cache
                    .get_or_insert_with(full_key, || bytes_of(stamp, len));
                self.inserted[key] = Some((stamp, len));
                check_value(&value, stamp, len)?;
            }
            CacheUse::Remove => {
                let was_there = self.cache.remove(&full_key);
                if was_there && self.inserted[key].is_none() {
                    return Err(Wrong::new("the cache", "nothing to remove", "a value"));
                }
                self.inserted[key] = None;
            }
        }
        Ok(())
    }

    pub fn use_file(&mut self, tools: &mut Tools, renew: bool) -> Result<(), Wrong> {
        if renew || self.file.is_none() {
            self.file = None;
            self.file = self.map_file(tools)?;
        }
        let Some((file, stamps)) = &self.file else {
            return Ok(());
        };
        for _ in 0..24 {
            let index = tools.stamps.usize(..stamps.len());
            let mut page = Page {
                stamp: stamps[index],
                ..Page::default()
            };
            page.look(Seen::Bytes(
                &file.as_slice()[index * page_size()..][..page_size()],
            ))?;
        }
        tools.board.add(Count::PagesChecked, 24);
        let locked = tools.expect(file.locked_bytes(), &[])?.unwrap_or(0);
        if locked > file.len() {
            return Err(Wrong::new("locked_bytes", file.len(), locked));
        }
        tools.expect(file.trim(), &[]).map(drop)
    }

    fn map_file(&self, tools: &mut Tools) -> Result<Option<(LockedFile, Vec<u64>)>, Wrong> {
        let stamps: Vec<u64> = (0..FILE_PAGES).map(|_| tools.stamps.u64(1..)).collect();
        let written = tempfile::tempfile().and_then(|mut file| {
            for &stamp in &stamps {
                file.write_all(&bytes_of(stamp, page_size()))?;
            }
            Ok(file)
        });
        let file = written.map_err(|error| Wrong::new("a temporary file", "success", error))?;
        let may_be: &[&str] = if tools.may_lock_anything {
            &[]
        } else {
            &["lock_limit"]
        };
        // SAFETY: nobody else knows the file.
        let mapped = unsafe { LockedFile::with_budget(&file, BUDGET_BYTES) };
        Ok(tools.expect(mapped, may_be)?.map(|mapped| (mapped, stamps)))
    }

    pub fn use_secret(
        &mut self,
        tools: &mut Tools,
        len: usize,
        what: SecretUse,
    ) -> Result<(), Wrong> {
        if let SecretUse::Renew { hidden } = what {
            self.check_secret()?;
            self.secret = None;
            let made = match hidden {
                true => SecretBuffer::hidden_with_max_len(SECRET_BYTES),
                false => SecretBuffer::with_max_len(SECRET_BYTES),
            };
            let mut may_be = Vec::new();
            if !tools.may_lock_anything {
                may_be.push("lock_limit");
            }
            if hidden && tenure::Features::get().memfd_secret.is_err() {
                may_be.push("unsupported");
            }
            let made = tools.expect(made, &may_be)?;
            self.secret = made.map(|secret| (secret, Vec::new(), hidden));
            return Ok(());
        }
        let Some((secret, known, _)) = &mut self.secret else {
            return Ok(());
        };
        match what {
            SecretUse::Extend => {
                let bytes = bytes_of(tools.stamps.u64(1..), len);
                let fits = known.len() + len <= SECRET_BYTES;
                let may_be: &[&str] = if fits {
                    &[]
                } else {
                    &["out_of_bounds", "other"]
                };
                let extended = tools.expect(secret.extend_from_slice(&bytes), may_be)?;
                if extended.is_some() {
                    known.extend_from_slice(&bytes);
                }
            }
            SecretUse::Truncate => {
                secret.truncate(len);
                known.truncate(len);
            }
            SecretUse::Resize => {
                tools.expect(secret.resize(len, 7), &[])?;
                known.resize(len, 7);
            }
            SecretUse::Clear => {
                secret.clear();
                known.clear();
            }
            SecretUse::Renew { .. } => {}
        }
        self.check_secret()
    }

    fn check_secret(&self) -> Result<(), Wrong> {
        let Some((secret, known, _)) = &self.secret else {
            return Ok(());
        };
        if secret.as_slice() != known.as_slice() || !secret.ct_eq(known) {
            let expected = format!("{} bytes as they were written", known.len());
            return Err(Wrong::new(
                "a secret",
                expected,
                format!("{} others", secret.len()),
            ));
        }
        Ok(())
    }

    /// Looks at all that is held.
    pub fn check(&self) -> Result<(), Wrong> {
        for (value, stamp, len) in &self.held {
            check_value(value, *stamp, *len)?;
        }
        self.check_secret()
    }

    /// In a child the cache is empty, what is pinned stays, and secrets are gone.
    pub fn check_in_child(&self) -> Result<(), Wrong> {
        for key in 0..CACHE_KEYS {
            if self.cache.get(&(self.thread, key)).is_some() {
                return Err(Wrong::new(
                    "a parent's cache in a child",
                    "nothing",
                    "a value",
                ));
            }
        }
        for (value, stamp, len) in &self.held {
            check_value(value, *stamp, *len)?;
        }
        if let Some((file, stamps)) = &self.file {
            let mut page = Page {
                stamp: stamps[0],
                ..Page::default()
            };
            page.look(Seen::Bytes(&file.as_slice()[..page_size()]))?;
            if file
                .locked_bytes()
                .map_err(|error| Wrong::new("locked_bytes", 0, error))?
                != 0
            {
                return Err(Wrong::new("a locked file in a child", "no locks", "locks"));
            }
        }
        let Some((secret, known, hidden)) = &self.secret else {
            return Ok(());
        };
        let wanted_len = if *hidden { 0 } else { known.len() };
        if secret.len() != wanted_len || secret.as_slice().iter().any(|&byte| byte != 0) {
            let found = format!("{} bytes, zeros or others", secret.len());
            return Err(Wrong::new(
                "a secret in a child",
                format!("{wanted_len} zeros"),
                found,
            ));
        }
        Ok(())
    }
}

fn bytes_of(stamp: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(page_size())];
    for (index, page) in bytes.chunks_exact_mut(page_size()).enumerate() {
        model::fill(page, stamp.wrapping_add(index as u64));
    }
    bytes.truncate(len);
    bytes
}

fn check_value(value: &[u8], stamp: u64, len: usize) -> Result<(), Wrong> {
    if value == bytes_of(stamp, len) {
        return Ok(());
    }
    let expected = format!("{len} bytes with the contents {stamp:#018x}");
    Err(Wrong::new(
        "a value of the cache",
        expected,
        format!("{} others", value.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_byte_or_length_of_a_value_is_noticed() {
        let mut bytes = bytes_of(77, 1003);
        assert_eq!(bytes.len(), 1003);
        check_value(&bytes, 77, 1003).unwrap();
        bytes[1002] ^= 4;
        assert!(check_value(&bytes, 77, 1003).is_err());
        assert!(check_value(&bytes[..1002], 77, 1003).is_err());
    }
}
