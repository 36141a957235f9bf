/* What every test program needs. A program ends with 0, with 1 when a check does not
 * hold, or with 77 and a line that says why it cannot run here. */
#ifndef BASICS_H
#define BASICS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds)                                                           \
    do {                                                                       \
        if (!(holds)) {                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__,  \
                    #holds);                                                   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* Shows both numbers when they differ. */
#define CHECK_IS(got, wanted)                                                  \
    do {                                                                       \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);      \
        if (got_ != wanted_) {                                                 \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__,         \
                    __LINE__, #got, got_, wanted_);                            \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static inline void skip(const char *reason)
{
    printf("skipped: %s\n", reason);
    exit(77);
}

static inline size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Private anonymous memory of base pages. */
static inline char *map(size_t len)
{
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED && errno == ENOMEM)
        skip("the system gives no more memory (overcommit)");
    CHECK(memory != MAP_FAILED);
    madvise(memory, len, MADV_NOHUGEPAGE);
    return memory;
}

/* The same, between two mappings that are no neighbours of the kernel's. */
static inline char *map_apart(size_t len)
{
    char *memory = map(len + 2 * page());
    CHECK_IS(munmap(memory, page()), 0);
    CHECK_IS(munmap(memory + page() + len, page()), 0);
    return memory + page();
}

/* Locks and unlocks without tenure. By system call, for AddressSanitizer makes nothing of
 * mlock(). */
static inline void others_lock(char *memory, size_t len)
{
    CHECK_IS(syscall(SYS_mlock, memory, len), 0);
}

static inline void others_unlock(char *memory, size_t len)
{
    CHECK_IS(syscall(SYS_munlock, memory, len), 0);
}

/* How many pages of the range are in memory. Not for shared memory and files, of
 * which mincore() tells the page cache. */
static inline size_t resident(const char *memory, size_t len)
{
    size_t pages = (len + page() - 1) / page(), count = 0;
    unsigned char *there = malloc(pages);
    CHECK(there != NULL);
    CHECK_IS(mincore((void *)(uintptr_t)memory, len, there), 0);
    for (size_t i = 0; i < pages; i++)
        count += there[i] & 1;
    free(there);
    return count;
}

/* A figure in KiB, or a set of flags, of the mapping that begins at `memory`. */
static inline int smaps(const char *memory, const char *field, char *out,
                        size_t size)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    int inside = 0, found = 0;

    CHECK(file != NULL);
    while (!found && fgets(line, sizeof(line), file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start == (unsigned long)(uintptr_t)memory;
        else if (inside && strncmp(line, field, strlen(field)) == 0) {
            snprintf(out, size, "%s", line + strlen(field));
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static inline long smaps_kib(const char *memory, const char *field)
{
    char text[512];
    return smaps(memory, field, text, sizeof(text)) ? atol(text) : -1;
}

static inline int has_flag(const char *memory, const char *flag)
{
    char text[512];
    if (!smaps(memory, "VmFlags:", text, sizeof(text)))
        return 0;
    return strstr(text, flag) != NULL;
}

/* Returns the flag in smaps that a lock on fault has: before Linux 6.11 that of any lock.
 * By the kernel's name, for valgrind has no mlock2() to try. */
static inline const char *onfault_flag(void)
{
    struct utsname system;
    int major, minor;
    CHECK_IS(uname(&system), 0);
    CHECK_IS(sscanf(system.release, "%d.%d", &major, &minor), 2);
    return major > 6 || (major == 6 && minor >= 11) ? " lf" : " lo";
}

/* Runs a function in a child; what it returns is the child's status, and a signal
 * is 128 and its number. */
static inline int in_child(int (*function)(void *), void *data)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(function(data));
    CHECK_IS(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
