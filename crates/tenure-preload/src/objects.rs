//! The objects of the process and what they define, read without the loader's lock: a thread
//! that loads a library holds that lock while the constructors run, which may wait for others.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;

use linux_raw_sys::elf::{
    DT_GNU_HASH, DT_HASH, DT_NULL, DT_STRTAB, DT_SYMTAB, Elf_Dyn, Elf_Sym, SHN_UNDEF,
};

const STB_WEAK: u8 = 2;

const DT_NEEDED: usize = 1;
const DT_PLTRELSZ: usize = 2;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_SONAME: usize = 14;
const DT_JMPREL: usize = 23;

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    /// The index of the symbol is in the upper half.
    info: u64,
    addend: i64,
}

/// An object that the loader is showing.
pub(crate) struct Object<'a> {
    info: &'a libc::dl_phdr_info,
    headers: &'a [libc::Elf64_Phdr],
}

/// Shows the objects, in the order in which they were loaded, until one is what was looked for:
/// `dl_iterate_phdr(3)`. None is unloaded meanwhile.
pub(crate) fn find<T, F: FnMut(&Object<'_>) -> Option<T>>(mut look: F) -> Option<T> {
    struct Search<'a, T, F> {
        look: &'a mut F,
        found: Option<T>,
    }
    unsafe extern "C" fn visit<T, F: FnMut(&Object<'_>) -> Option<T>>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes its own data, valid during this call, with a pointer and a
        // count that describe one array, and the `Search` below.
        let (info, headers, search) = unsafe {
            let info = &*info;
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            (info, headers, &mut *search.cast::<Search<'_, T, F>>())
        };
        search.found = (search.look)(&Object { info, headers });
        c_int::from(search.found.is_some())
    }
    let mut search = Search {
        look: &mut look,
        found: None,
    };
    // SAFETY: `visit` keeps no pointer.
    unsafe { libc::dl_iterate_phdr(Some(visit::<T, F>), (&raw mut search).cast()) };
    search.found
}

/// Returns the addresses of the object that has this one.
pub(crate) fn addresses_of(address: usize) -> Option<Range<usize>> {
    let addresses = |object: &Object<'_>| Some(object.addresses());
    find(|object| addresses(object).filter(|it| it.contains(&address)))
}

impl Object<'_> {
    /// Returns the addresses from the first segment to the end of the last.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let loaded = self.headers.iter().filter(|it| it.p_type == libc::PT_LOAD);
        let start = |it: &libc::Elf64_Phdr| self.at(it.p_vaddr as usize);
        let first = loaded.clone().map(start).min().unwrap_or(0);
        let end = loaded.map(|it| start(it) + it.p_memsz as usize).max();
        first..end.unwrap_or(first)
    }

    /// Returns the address of a function or variable that the object defines.
    pub(crate) fn definition(&self, name: &CStr) -> Option<usize> {
        let symbols: *const Elf_Sym = self.table(DT_SYMTAB)?;
        let texts: *const c_char = self.table(DT_STRTAB)?;
        let is_it = |index: u32| {
            // SAFETY: the tables of the object, which stays loaded meanwhile, have this symbol
            // and its name.
            let (symbol, found) = unsafe {
                let symbol = &*symbols.add(index as usize);
                (symbol, CStr::from_ptr(texts.add(symbol.st_name as usize)))
            };
            (symbol.st_shndx != SHN_UNDEF && found == name).then(|| self.at(symbol.st_value))
        };
        if let Some(table) = self.table::<u32>(DT_GNU_HASH) {
            return self.by_hash(table, name, is_it);
        }
        let table: *const u32 = self.table(DT_HASH)?;
        // SAFETY: the second number is that of the symbols, of which the first has no name.
        let count = unsafe { table.add(1).read() };
        (1..count).find_map(is_it)
    }

    /// Looks at the symbols whose names have the hash of this one.
    fn by_hash(
        &self,
        table: *const u32,
        name: &CStr,
        is_it: impl Fn(u32) -> Option<usize>,
    ) -> Option<usize> {
        const HEADER_WORDS: usize = 4;
        let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add((*byte).into());
        let hash = name.to_bytes().iter().fold(5381, step);
        // SAFETY: a table of this format: the numbers of buckets, of symbols that are not in it,
        // and of words of 64 bits that follow; then the first symbol of each bucket, and the
        // hashes of all, whose lowest bit marks the last one of a bucket.
        unsafe {
            let (buckets, first) = (table.read(), table.add(1).read());
            let bloom_words = table.add(2).read() as usize * 2;
            let bucket = table.add(HEADER_WORDS + bloom_words);
            let hashes = bucket.add(buckets as usize);
            let mut index = bucket.add(hash.checked_rem(buckets)? as usize).read();
            while index >= first {
                let found = hashes.add((index - first) as usize).read();
                if found | 1 == hash | 1
                    && let Some(address) = is_it(index)
                {
                    return Some(address);
                }
                if found & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    /// Returns the first wanted name that the object uses and does not have for itself: one to
    /// which a relocation refers. The hash table has only what an object defines, and nothing else
    /// tells how many symbols there are. A weak definition counts as none: another object's may be
    /// in its place.
    ///
    /// The name stays as long as the object: the callers keep those of objects that the process
    /// has started with.
    pub(crate) fn use_of(&self, is_wanted: impl Fn(&CStr) -> bool) -> Option<&'static CStr> {
        let symbols: *const Elf_Sym = self.table(DT_SYMTAB)?;
        let texts: *const c_char = self.table(DT_STRTAB)?;
        [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)]
            .into_iter()
            .flat_map(|(table, bytes)| self.relocations(table, bytes))
            .filter(|it| it.info >> 32 != 0)
            .find_map(|it| {
                // SAFETY: the tables of the object, which stays loaded meanwhile, have the symbol
                // that a relocation refers to, and its name.
                let (symbol, name) = unsafe {
                    let symbol = &*symbols.add((it.info >> 32) as usize);
                    (symbol, CStr::from_ptr(texts.add(symbol.st_name as usize)))
                };
                let is_others = symbol.st_shndx == SHN_UNDEF || symbol.st_info >> 4 == STB_WEAK;
                (is_others && is_wanted(name)).then_some(name)
            })
    }

    fn relocations(&self, table: usize, bytes: usize) -> &[Relocation] {
        let bytes = self.entries(bytes).next().unwrap_or(0);
        match self.table(table) {
            // SAFETY: the entries of the dynamic section, which stays mapped with the object, tell
            // the table's address and size; x86-64 and aarch64 have no other format.
            Some(table) => unsafe {
                std::slice::from_raw_parts(table, bytes / size_of::<Relocation>())
            },
            None => &[],
        }
    }

    /// Returns the path under which the loader has the object; empty for the program.
    pub(crate) fn path(&self) -> &'static CStr {
        // SAFETY: the loader's own string, which lives as long as the object: the callers keep
        // those of objects that the process has started with.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }
    }

    /// Returns whether the object has this name, by which others say that they need it.
    pub(crate) fn is_named(&self, name: &CStr) -> bool {
        let own = self.texts(DT_SONAME).next().unwrap_or(self.path());
        file_name(own) == file_name(name)
    }

    /// Returns the names of the objects that this one needs.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.texts(DT_NEEDED)
    }

    fn texts(&self, tag: usize) -> impl Iterator<Item = &CStr> {
        let texts: Option<*const c_char> = self.table(DT_STRTAB);
        self.entries(tag).filter_map(move |offset| {
            // SAFETY: the table has a string at each offset that an entry names.
            texts.map(|texts| unsafe { CStr::from_ptr(texts.add(offset)) })
        })
    }

    /// Returns the table that an entry of the dynamic section points to.
    fn table<T>(&self, tag: usize) -> Option<*const T> {
        let found = self.entries(tag).next()?;
        // The loader has made it an address, unless the section is not writable.
        let address = match found < self.addresses().start {
            true => self.at(found),
            false => found,
        };
        Some(std::ptr::with_exposed_provenance(address))
    }

    /// Returns the values of the entries of the dynamic section that have this tag.
    fn entries(&self, tag: usize) -> impl Iterator<Item = usize> {
        let dynamic = |it: &&libc::Elf64_Phdr| it.p_type == libc::PT_DYNAMIC;
        let header = self.headers.iter().find(dynamic);
        let mut next: Option<*const Elf_Dyn> =
            header.map(|it| std::ptr::with_exposed_provenance(self.at(it.p_vaddr as usize)));
        let all = std::iter::from_fn(move || {
            let at = next?;
            // SAFETY: an entry of the section, as the one before was not the last.
            let entry = unsafe { *at };
            // SAFETY: as above; the value and the address are of the same size.
            next = (entry.d_tag != DT_NULL).then(|| unsafe { at.add(1) });
            // SAFETY: any value is a valid number.
            next.map(|_| (entry.d_tag, unsafe { entry.d_un.d_ptr }))
        });
        all.filter(move |(found, _)| *found == tag)
            .map(|(_, value)| value)
    }

    fn at(&self, offset: usize) -> usize {
        (self.info.dlpi_addr as usize).wrapping_add(offset)
    }
}

fn file_name(path: &CStr) -> Option<&[u8]> {
    path.to_bytes().rsplit(|byte| *byte == b'/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_those_of_the_loader() {
        for name in [c"getpid", c"getuid", c"abort"] {
            let found = find(|object| object.definition(name));
            assert_eq!(found, Some(crate::sys::symbol(name).addr()), "{name:?}");
        }
        assert_eq!(find(|object| object.definition(c"no_such_function")), None);
    }

    #[test]
    fn uses_are_those_that_others_define() {
        let here = definitions_are_those_of_the_loader as *const c_void;
        let use_of = |wanted: &CStr| {
            find(|object| {
                let is_here = object.addresses().contains(&here.addr());
                is_here.then(|| object.use_of(|name| name == wanted))
            })
            .flatten()
        };
        assert_eq!(use_of(c"dl_iterate_phdr"), Some(c"dl_iterate_phdr"));
        assert_eq!(use_of(c"dallocx"), None);
    }

    #[test]
    fn needed_objects_are_loaded_under_their_names() {
        let mut needed = Vec::new();
        find(|object| -> Option<()> {
            needed.extend(object.needed().map(CStr::to_owned));
            None
        });
        assert!(needed.iter().any(|name| name.as_c_str() == c"libc.so.6"));
        for name in needed {
            assert!(find(|object| object.is_named(&name).then_some(())).is_some());
        }
    }

    #[test]
    fn addresses_cover_code_and_data() {
        static DATA: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
        let of = |pointer: *const c_void| addresses_of(pointer.addr());
        let code = of(addresses_of as *const c_void).unwrap();
        assert_eq!(of((&raw const DATA).cast()), Some(code.clone()));
        let other = of(libc::getpid as *const c_void).unwrap();
        assert!(other.end <= code.start || code.end <= other.start);
        let on_the_stack = 0_u8;
        assert_eq!(of((&raw const on_the_stack).cast()), None);
    }
}
