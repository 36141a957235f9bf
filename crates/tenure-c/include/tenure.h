/* tenure.h - control over the life of memory on stock Linux kernels.
 *
 * Made from the source by cargo xtask generate; do not edit.
 *
 * A function answers 0 or a positive result, and -errno when it fails; errno itself
 * is not touched. Every function may be called from several threads at once, none
 * from a signal handler. A thread is not cancelled inside of one. tenure(7) tells the
 * ideas, and each function has a page of its own in section 3.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef TENURE_H
#define TENURE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * All pages come in before the call returns.
 */
#define TENURE_LOCK_NOW 1

/**
 * Each page comes in when it is first used.
 */
#define TENURE_LOCK_ONFAULT 2

/**
 * What is mapped now.
 */
#define TENURE_LOCK_CURRENT 4

/**
 * What will be mapped from now on.
 */
#define TENURE_LOCK_FUTURE 8

/**
 * Locks the mapping on fault: no page comes in before it is used, and then it stays.
 */
#define TENURE_MAP_LOCKONFAULT 1

/**
 * Populates the mapping for reading.
 */
#define TENURE_MAP_POPULATE_READ 2

/**
 * Populates the mapping for writing.
 */
#define TENURE_MAP_POPULATE_WRITE 4

/**
 * Leaves the mapping out of core dumps.
 */
#define TENURE_MAP_NODUMP 8

/**
 * Gives children zeros instead of the contents; private anonymous memory only.
 */
#define TENURE_MAP_WIPEONFORK 16

/**
 * For reading: maps what is there. Of private anonymous memory that is the page of
 * zeros, and no memory is taken.
 */
#define TENURE_POPULATE_READ 1

/**
 * For writing, without changing contents.
 */
#define TENURE_POPULATE_WRITE 2

/**
 * Goes on although there seems to be too little memory. Past the limit of a memory
 * cgroup the kernel kills the process.
 */
#define TENURE_POPULATE_FORCE 4

/**
 * Offers the range to the kernel before the call returns.
 */
#define TENURE_VOLATILE_OFFER_NOW 1

/**
 * How to populate. Set all of it to zeros, then size, then what is wanted.
 */
struct tenure_populate_options {
    /**
     * sizeof(struct tenure_populate_options): what the program was built with.
     */
    size_t size;
    /**
     * How many threads share the work, the calling one included; 0 is the number
     * that helps: one for each CPU that the process may use, at most one for each
     * 64 MiB begun.
     */
    size_t threads;
    /**
     * How many bytes to bring in at a time, rounded up to whole pages; 0 is what
     * takes about 2 ms. Another thread's mmap() waits for as long as a chunk takes.
     */
    size_t chunk_bytes;
    /**
     * NULL, or what is called on the calling thread about every 50 ms, and once
     * when all is done. Anything but 0 as its answer ends populating early with
     * -ECANCELED. It must return: no longjmp(), no C++ exception.
     */
    int (*progress)(size_t done_bytes, size_t total_bytes, void *data);
    /**
     * What progress is given.
     */
    void *data;
};

/**
 * What tenure has done in this process since it began, or since it was forked. Calls
 * that failed are not counted. New fields come last.
 */
struct tenure_stats {
    /**
     * Ranges populated whole: how often.
     */
    uint64_t populate_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t populate_bytes;
    /**
     * Ranges locked, in either mode: how often.
     */
    uint64_t lock_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t lock_bytes;
    /**
     * Ranges unlocked: the parts that had such a lock. How often.
     */
    uint64_t unlock_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t unlock_bytes;
    /**
     * Calls of tenure_mlockall().
     */
    uint64_t lock_all_calls;
    /**
     * Calls of tenure_munlockall().
     */
    uint64_t unlock_all_calls;
    /**
     * Ranges freed lazily: how often.
     */
    uint64_t lazy_free_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t lazy_free_bytes;
    /**
     * Ranges marked volatile, anew or again: how often.
     */
    uint64_t mark_volatile_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t mark_volatile_bytes;
    /**
     * Ranges marked nonvolatile: the parts that were volatile. How often.
     */
    uint64_t mark_nonvolatile_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t mark_nonvolatile_bytes;
    /**
     * Volatile pages that the kernel took, in bytes, counted when tenure finds out: when
     * they are marked nonvolatile.
     */
    uint64_t purged_by_kernel_bytes;
    /**
     * Volatile pages taken by tenure_purge(), in bytes.
     */
    uint64_t purged_on_request_bytes;
    /**
     * Volatile memory that counts as lost because its protection ended without tenure's
     * doing: its userfaultfd was closed, or it was mapped over.
     */
    uint64_t unprotected_bytes;
    /**
     * What is volatile at the moment, in bytes.
     */
    uint64_t volatile_bytes;
    /**
     * Ranges unmapped; holes count: how often.
     */
    uint64_t munmap_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t munmap_bytes;
    /**
     * Ranges whose contents were discarded: how often.
     */
    uint64_t discard_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t discard_bytes;
    /**
     * Ranges punched out of shared memory (not in the C interface): how often.
     */
    uint64_t punch_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t punch_bytes;
    /**
     * Of munmap and discard: what was moved out of the way, for workers to free
     * behind the caller. How often.
     */
    uint64_t carried_off_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t carried_off_bytes;
    /**
     * Of munmap and discard: what the caller itself freed, plainly.
     */
    uint64_t freed_by_caller_bytes;
    /**
     * How many threads were started to free memory.
     */
    uint64_t workers_started;
    /**
     * What was carried off and is not free yet, at the moment.
     */
    uint64_t pending_release_bytes;
    /**
     * Ranges freed at once by a policy (not in the C interface): how often.
     */
    uint64_t eager_free_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t eager_free_bytes;
    /**
     * Ranges freed lazily by a policy, and taken under severe pressure (not in the C
     * interface): how often.
     */
    uint64_t given_back_calls;
    /**
     * The same: to how many bytes in all.
     */
    uint64_t given_back_bytes;
    /**
     * Volatile pages that tenure took under memory pressure.
     */
    uint64_t purged_under_pressure_bytes;
    /**
     * What of the volatile memory the kernel has been offered, at the moment.
     */
    uint64_t offered_bytes;
    /**
     * Volatile memory that could not be offered when it was due (locked or replaced
     * behind tenure's back, no room for one more mapping); it stays. Ranges are tried
     * again when they are marked again, buffers after seconds.
     */
    uint64_t not_offered_bytes;
    /**
     * What of the volatile memory the kernel cannot be offered for want of userfaultfd
     * or MADV_POPULATE_WRITE, at the moment: all of it, or nothing. tenure alone takes
     * it, under memory pressure.
     */
    uint64_t kept_from_kernel_bytes;
};

/**
 * A range of addresses.
 */
struct tenure_range {
    /**
     * The first byte.
     */
    void *addr;
    /**
     * How many bytes.
     */
    size_t len;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

extern int pthread_setcancelstate(int state, int *old);

/**
 * Frees the contents of a range lazily: they are no longer needed, and the kernel
 * takes the pages when it must. It is madvise(MADV_FREE).
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. It must be private anonymous memory.
 *
 * Until a page is written again its contents may turn into zeros at any time. Writing
 * takes it back for good, reading does not. The process's RSS counts the pages until
 * the kernel takes them. Pages that are swapped out are dropped at once. Volatility
 * of the range ends.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With nothing done:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space; or a part is not private anonymous memory, or is locked.
 *   Correct the call; use tenure_munlock() first.
 * * -ENOMEM: A part is not mapped.
 * * -EOPNOTSUPP: The kernel has no MADV_FREE, or not for this memory. Use
 *   tenure_discard().
 *
 * Caveats:
 *
 * Nothing may rely on the contents of the range any more.
 *
 * Notes:
 *
 * MADV_FREE is there from Linux 4.5, and without swap from 4.12.
 */
int tenure_lazy_free(void *addr, size_t len);

/**
 * Locks a range in memory: its pages stay once they are in. It is mlock(), or
 * mlock2(MLOCK_ONFAULT).
 *
 * addr must be the start of a page. len is in bytes and is rounded up to whole
 * pages; 0 succeeds and does nothing. mode is TENURE_LOCK_NOW or
 * TENURE_LOCK_ONFAULT. What is locked already takes the new mode.
 *
 * The whole range counts against RLIMIT_MEMLOCK from now on, in both modes; what was
 * locked before is not counted twice. Locks do not stack, and children do not inherit
 * them. hugetlb memory is brought in whole in both modes, has no lock and does not
 * count.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With every lock as it was before:
 *
 * * -EINVAL: addr is not the start of a page, mode is not one of the above, or
 *   the range goes past the end of the address space. Correct the call.
 * * -ENOMEM: A part is not mapped; or RLIMIT_MEMLOCK does not allow it: raise it
 *   (ulimit -l, LimitMEMLOCK=) or give the program CAP_IPC_LOCK; or the kernel has
 *   no room to split a mapping (vm.max_map_count).
 * * -EPERM: RLIMIT_MEMLOCK is 0. Raise it.
 * * -EACCES: With TENURE_LOCK_NOW, a part has no access (PROT_NONE) and cannot be
 *   brought in. Lock it on fault, or use mprotect() first.
 * * -EFAULT: With TENURE_LOCK_NOW, a page cannot be brought in: its file is
 *   shorter than the mapping. Lock less, or make the file longer.
 * * -ENOSYS: With TENURE_LOCK_ONFAULT, there is no mlock2: before Linux 4.4, and under
 *   valgrind. Lock at once.
 *
 * Caveats:
 *
 * The kernel does not know who has locked a page: unlocking takes all locks away.
 *
 * Notes:
 *
 * Locking on fault is there from Linux 4.4.
 */
int tenure_mlock(const void *addr,
                 size_t len,
                 unsigned int mode);

/**
 * Unlocks the parts of a range that are locked in one of the modes named. It is
 * munlock() on those parts, whoever has locked them; others stay as they are.
 *
 * addr must be the start of a page. len is in bytes and is rounded up to whole
 * pages; 0 succeeds and does nothing. modes is TENURE_LOCK_NOW,
 * TENURE_LOCK_ONFAULT, or both.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: addr is not the start of a page, modes names none or others, or the
 *   range goes past the end of the address space. Nothing was done; correct the call.
 * * -ENOMEM: A part is not mapped, and nothing was done; or the kernel has no room
 *   to split a mapping (vm.max_map_count), and the parts before it are unlocked.
 *
 * Notes:
 *
 * The modes are looked up in /proc/self/smaps for what was not locked through tenure,
 * which takes about 20 ms for each GiB that the process has in memory. Before Linux
 * 6.11 that does not tell the mode: what others have locked then counts as
 * TENURE_LOCK_NOW, or, while tenure_mlockall holds for future mappings, as the mode
 * that it was told.
 */
int tenure_munlock(const void *addr, size_t len, unsigned int modes);

/**
 * Locks all memory of the process: code, stacks, and what other parts of the program
 * have mapped. It is mlockall().
 *
 * flags is TENURE_LOCK_CURRENT, TENURE_LOCK_FUTURE or both, and one mode:
 * TENURE_LOCK_NOW or TENURE_LOCK_ONFAULT. TENURE_LOCK_CURRENT alone ends what
 * was said of future mappings before. Children, and programs that are executed, have
 * no locks.
 *
 * While it holds for future mappings, mmap() fails with EAGAIN past RLIMIT_MEMLOCK,
 * and with TENURE_LOCK_ONFAULT the flags MAP_POPULATE and MAP_LOCKED of mmap()
 * bring nothing in; tenure_populate() does.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With every lock as it was:
 *
 * * -EINVAL: flags is not as above. Correct the call.
 * * -ENOMEM: RLIMIT_MEMLOCK does not allow it. The kernel compares it with all that
 *   is mapped (VmSize). Raise it, or give the program CAP_IPC_LOCK.
 * * -EPERM: RLIMIT_MEMLOCK is 0. Raise it.
 *
 * Notes:
 *
 * Locking on fault is there from Linux 4.4.
 */
int tenure_mlockall(unsigned int flags);

/**
 * Unlocks all memory of the process that is locked in one of the modes named, and
 * locks new mappings no longer in such a mode. It is munlockall() when both are
 * named, and munlock() on each part otherwise.
 *
 * modes is TENURE_LOCK_NOW, TENURE_LOCK_ONFAULT, or both.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: modes names none or others. Nothing was done; correct the call.
 * * -ENOMEM: The kernel has no room to split a mapping (vm.max_map_count). Some of
 *   the locks have been cleared.
 *
 * Notes:
 *
 * Where locks of one mode stay and new mappings were locked in the other, all memory
 * is locked on fault for a moment.
 */
int tenure_munlockall(unsigned int modes);

/**
 * Maps memory, and makes it ready before anybody sees it: either it comes back
 * locked, populated and marked as asked for, or nothing stays mapped. It is mmap(),
 * then madvise(), tenure_mlock() and tenure_populate().
 *
 * *out becomes the address; it is not touched on an error, and out must not be
 * NULL. len is in bytes and is rounded up to whole pages of the kind of memory.
 * prot, flags, fd and offset are those of mmap(), but the kernel picks the
 * place: MAP_FIXED and MAP_FIXED_NOREPLACE are refused. fd is not looked at with
 * MAP_ANONYMOUS. tenure_flags is 0 or any of TENURE_MAP_LOCKONFAULT,
 * TENURE_MAP_POPULATE_READ or TENURE_MAP_POPULATE_WRITE, TENURE_MAP_NODUMP and
 * TENURE_MAP_WIPEONFORK.
 *
 * The mapping is the caller's, who ends it with tenure_munmap() or munmap().
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With nothing mapped:
 *
 * * -EFAULT: out is NULL; or, populating, the file is shorter than the mapping or
 *   no huge page is free. Correct the call, or make the file longer.
 * * -EINVAL: len is 0, offset is not a whole number of pages or negative, a flag
 *   is not known, both ways of populating are asked for, or MAP_FIXED is; or the kind
 *   of memory does not know the advice (TENURE_MAP_WIPEONFORK on shared memory).
 *   Correct the call.
 * * -EBADF: fd is not an open file.
 * * -EACCES: The file is not open for what prot asks; or populating needs an access
 *   that prot does not give.
 * * -ENODEV: The file cannot be mapped.
 * * -ENOMEM: There is no room for the mapping (vm.max_map_count, RLIMIT_AS,
 *   overcommit, huge pages), RLIMIT_MEMLOCK does not allow the lock, or populating
 *   would take more memory than there is. Map less, or raise what limits it.
 * * -EPERM: RLIMIT_MEMLOCK is 0, and a lock was asked for; or prot asks for
 *   PROT_EXEC on a file system that forbids it.
 *
 * Other errors are those of mmap().
 *
 * Notes:
 *
 * TENURE_MAP_LOCKONFAULT needs Linux 4.4, TENURE_MAP_WIPEONFORK Linux 4.14.
 */
int tenure_mmap(void **out,
                size_t len,
                int prot,
                int flags,
                int fd,
                off_t offset,
                unsigned int tenure_flags);

/**
 * Populates a range of memory: faults it in now, so that touching it later takes
 * no page fault. It is madvise(MADV_POPULATE_READ) or MADV_POPULATE_WRITE, in
 * chunks, by several threads.
 *
 * addr must be the start of a page. len is in bytes and is rounded up to whole
 * pages; 0 succeeds and does nothing. flags is TENURE_POPULATE_READ or
 * TENURE_POPULATE_WRITE, with or without TENURE_POPULATE_FORCE.
 *
 * Contents do not change, also while other threads write to them. A page that
 * cannot be brought in is an error and no signal. Populated pages may be taken out
 * again under memory pressure; tenure_mlock() keeps them.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With nothing done:
 *
 * * -EINVAL: addr is not the start of a page, flags is not one of the above,
 *   the range goes past the end of the address space, or a part is a special mapping
 *   of the kernel's ([vdso]). Correct the call.
 * * -ENOMEM: A part is not mapped; or it would take more memory than the machine,
 *   the memory cgroup or the pool of huge pages has left. Map it all; free memory or
 *   raise the limit, or give TENURE_POPULATE_FORCE.
 * * -EACCES: A part cannot be read, or written. Use mprotect() first.
 *
 * With a part populated, which is harmless:
 *
 * * -EFAULT: There is nothing to bring in for a page: its file is shorter than the
 *   mapping, or no huge page is free. Touching it would be SIGBUS. Make the file
 *   longer.
 * * -EHWPOISON: A page is on memory that has failed. Map other memory.
 *
 * Caveats:
 *
 * No other code may count on pages of the range being absent, as the user of a
 * userfaultfd does who fills them in.
 *
 * Notes:
 *
 * MADV_POPULATE_READ and MADV_POPULATE_WRITE are there from Linux 5.14. Before,
 * pages are touched by system calls, which is slower and means the same.
 */
int tenure_populate(void *addr, size_t len, unsigned int flags);

/**
 * Populates a range of memory as tenure_populate() does, as the options say: with
 * so many threads, in chunks of such a size, telling its progress, and ending early
 * when that is wanted.
 *
 * addr, len and flags are as for tenure_populate(). options may be NULL,
 * which leaves everything to tenure; it is not used after the call.
 *
 * To end early from another thread or a signal handler, set a flag of your own and
 * have progress return it.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * Those of tenure_populate(), and:
 *
 * * -EINVAL: options->size is smaller than the structure was in the first version.
 *   Set it to sizeof(struct tenure_populate_options). Nothing was done.
 * * -E2BIG: The structure is a later version's, and has something set that this
 *   version does not know. Use the library that the program was built for. Nothing
 *   was done.
 * * -ECANCELED: progress answered anything but 0. A part is populated.
 *
 * Caveats:
 *
 * As for tenure_populate().
 *
 * Notes:
 *
 * As for tenure_populate().
 */
int tenure_populate_with(void *addr,
                         size_t len,
                         unsigned int flags,
                         const struct tenure_populate_options *options);

/**
 * Unmaps a range, at once for the caller, whatever its size. It is munmap() with its
 * meaning, holes included; the pages of anonymous memory of 4 MiB and more are moved
 * out of the way with mremap() and freed by threads of tenure's.
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. Locks and volatility of the range end.
 *
 * Files, locked memory and hugetlb memory are unmapped before the call returns, in
 * chunks that do not keep other threads waiting.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space, and nothing was done; or a part is a part of a huge page.
 *   Correct the call.
 * * -ENOMEM: The kernel has no room to split a mapping (vm.max_map_count). What lies
 *   before it may be unmapped, and contents are given up. Unmap whole mappings.
 *
 * Caveats:
 *
 * Nothing may use the range any more.
 *
 * Notes:
 *
 * What was moved away is in use until it is freed: tenure_drain() waits for that.
 */
int tenure_munmap(void *addr,
                  size_t len);

/**
 * Discards the contents of a range, at once for the caller, whatever its size: it
 * stays mapped and reads as zeros, or, for a private mapping of a file, as the file
 * does. It is madvise(MADV_DONTNEED) with its meaning; the pages of anonymous memory
 * of 4 MiB and more are moved away with mremap(MREMAP_DONTUNMAP) and freed by
 * threads of tenure's.
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. Volatility of the range ends.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space; or a part is shared, hugetlb or locked memory. Nothing was done.
 *   Correct the call; use tenure_munlock() first.
 * * -ENOMEM: A part is not mapped. Nothing was done.
 *
 * Caveats:
 *
 * Nothing may rely on the contents of the range any more.
 *
 * Notes:
 *
 * MREMAP_DONTUNMAP is there from Linux 5.7. Before, MADV_DONTNEED is used, in chunks.
 */
int tenure_discard(void *addr, size_t len);

/**
 * Waits until all memory that tenure_munmap() and tenure_discard() left behind is
 * freed.
 *
 * timeout_ms is in milliseconds: -1 waits as long as it takes, 0 only asks.
 *
 * Return value:
 *
 * 0 when all is free, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -ETIMEDOUT: The time is over, and something is still pending:
 *   pending_release_bytes of tenure_stats() tells how much. Call again.
 * * -EINVAL: timeout_ms is less than -1.
 *
 * Notes:
 *
 * While somebody waits, the threads that free memory do not step back for others.
 */
int tenure_drain(int timeout_ms);

/**
 * Tells what tenure has done in this process.
 *
 * *out gets the figures; out must not be NULL. size_of_out is sizeof(*out), what
 * the program was built with: of a smaller structure only that much is written, and what
 * this version of tenure does not know is set to zeros. Each figure is exact; while other
 * threads work, two figures may be from two moments. A child after fork() counts from
 * zero.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EFAULT: out is NULL.
 *
 * Notes:
 *
 * tenure stat PID shows the figures of another process.
 */
int tenure_stats(struct tenure_stats *out,
                 size_t size_of_out);

/**
 * Tells the version of the library that the program runs with.
 *
 * Return value:
 *
 * Text such as "0.1.0", never NULL. It is tenure's and stays valid; do not free it.
 */
const char *tenure_version(void);

/**
 * Marks a range volatile, with priority 2: the kernel may take its pages when it
 * needs them, and says so. It is userfaultfd() in SIGBUS mode and
 * madvise(MADV_FREE), which a thread of tenure's does when the range has been
 * volatile for 100 ms, or at once under memory pressure.
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. It must be private anonymous memory, readable and
 * writable. Ranges may overlap; marking again is harmless.
 *
 * From now on, until tenure_mnovolatile(): what is still there reads as before. A
 * write keeps its page from being taken with its old contents; the page stays
 * volatile. Touching a page that was taken is SIGBUS with its address in si_addr; a
 * system call that is given such an address answers EFAULT. Pages that were never
 * touched are not lost, and read as zeros.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * With nothing done:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space; or a part is not private anonymous memory, or is locked.
 *   Correct the call; use tenure_munlock() first.
 * * -ENOMEM: A part is not mapped, or the kernel has no room to split a mapping
 *   (vm.max_map_count).
 * * -EACCES: A part cannot be read and written. Use mprotect() first.
 * * -EBUSY: A part is registered with another userfaultfd. End that first.
 * * -EOPNOTSUPP: No descriptor is left for a userfaultfd (RLIMIT_NOFILE).
 *
 * Caveats:
 *
 * Do not use the memory meanwhile in ways that cannot stand SIGBUS. The range must not
 * be unmapped, moved or mapped over but through tenure, which then ends its
 * volatility. After fork() the range is volatile in the child as well; memory that a
 * child made with clone() has is not protected.
 *
 * Notes:
 *
 * It needs Linux 5.11 or a privilege, and MADV_POPULATE_WRITE (Linux 5.14). Where these
 * are missing or refused (by the seccomp profile of a container), the kernel is offered
 * nothing: tenure itself takes pages under memory pressure, and touching one is SIGSEGV.
 */
int tenure_mvolatile(void *addr,
                     size_t len);

/**
 * Marks a range volatile as tenure_mvolatile() does, with a priority, and, if
 * wanted, at once.
 *
 * addr and len are as for tenure_mvolatile(). priority is 0 (first to go) to 3
 * (last to go); of one priority, what was marked least recently goes first. The order
 * holds for what tenure takes under memory pressure; what the kernel takes by itself
 * goes in the order in which it was offered. flags is 0 or
 * TENURE_VOLATILE_OFFER_NOW, which offers the range to the kernel before the call
 * returns.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * Those of tenure_mvolatile(), and:
 *
 * * -EINVAL: priority is larger than 3, or a flag is not known. Nothing was done.
 *
 * Caveats:
 *
 * As for tenure_mvolatile().
 *
 * Notes:
 *
 * As for tenure_mvolatile(). What cannot be offered stays where it is, and is counted
 * in not_offered_bytes of tenure_stats().
 */
int tenure_mvolatile_with(void *addr,
                          size_t len,
                          unsigned int priority,
                          unsigned int flags);

/**
 * Makes a volatile range ordinary memory again, and tells exactly which pages were
 * lost: they read as zeros, and all others are as they were.
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. Parts that are not volatile are passed over.
 *
 * purged is NULL, or room for max_purged ranges: the first runs of lost pages, in
 * order of address. purged_count is NULL, or gets the number of all runs, also of
 * those past max_purged. On an error neither is touched. The room is the caller's;
 * tenure keeps no pointer to it.
 *
 * Return value:
 *
 * * 0: Intact: every byte is as it was.
 * * 1: Something was lost.
 *
 * Or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space. Nothing was done; correct the call.
 * * -ENOMEM: A part is not mapped, and nothing was done; or there is no memory to take
 *   a page back. Then the range stays volatile, and what was found to be lost is told by
 *   the next call that succeeds: free memory and call again.
 *
 * Caveats:
 *
 * A part whose protection ended without tenure's doing (all descriptors were closed, or
 * something else was mapped there) is told as lost whole; what it holds is left as it is.
 *
 * Notes:
 *
 * PAGEMAP_SCAN (Linux 6.7) finds what was lost; before, /proc/self/pagemap does, which
 * takes longer.
 */
int tenure_mnovolatile(void *addr,
                       size_t len,
                       struct tenure_range *purged,
                       size_t max_purged,
                       size_t *purged_count);

/**
 * Purges the volatile parts of a range: has their contents taken now, as the kernel
 * would under memory pressure. It is madvise(MADV_DONTNEED) on the pages that are
 * there. For tests, and for programs that are told to shrink.
 *
 * addr must be the start of a page and len, in bytes, a whole number of pages; 0
 * succeeds and does nothing. Parts that are not volatile are left alone. The range
 * stays volatile.
 *
 * Return value:
 *
 * 0, or one of the errors below, negative. errno is not touched.
 *
 * Errors:
 *
 * * -EINVAL: addr or len is not whole pages, or the range goes past the end of
 *   the address space, and nothing was done; or a part was locked after it was marked.
 *   Correct the call; use tenure_munlock() first.
 * * -ENOMEM: A part is not mapped. Nothing was done.
 *
 * Notes:
 *
 * As for tenure_mvolatile().
 */
int tenure_purge(void *addr, size_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENURE_H */
