/* A library that counts the calls of mmap and its relatives, and passes them on, like those
 * of tools that trace memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEXT(type, name) ((type)(long)dlsym(RTLD_NEXT, name))

typedef void *(*mmap_type)(void *, size_t, int, int, int, off_t);

static const char *const names[] = {"mmap", "mmap64", "munmap", "mremap", "madvise"};
static long calls[5];

/* How often a function was called. */
long counted(const char *name);
long counted(const char *name)
{
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], name) == 0)
            return calls[i];
    return -1;
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    calls[0]++;
    return NEXT(mmap_type, "mmap")(addr, len, prot, flags, fd, offset);
}

void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    calls[1]++;
    return NEXT(mmap_type, "mmap64")(addr, len, prot, flags, fd, offset);
}

int munmap(void *addr, size_t len)
{
    calls[2]++;
    return NEXT(int (*)(void *, size_t), "munmap")(addr, len);
}

void *mremap(void *old, size_t old_len, size_t new_len, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *new = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    calls[3]++;
    return NEXT(void *(*)(void *, size_t, size_t, int, ...), "mremap")(old, old_len, new_len,
                                                                      flags, new);
}

int madvise(void *addr, size_t len, int advice)
{
    calls[4]++;
    return NEXT(int (*)(void *, size_t, int), "madvise")(addr, len, advice);
}

/* Runs before tenure's own, by which calls must be passed on already. */
__attribute__((constructor)) static void begin(void)
{
    long before = calls[0];
    void *memory = mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || calls[0] != before + 1)
        _exit(9);
    if (munmap(memory, 1 << 16) != 0)
        _exit(9);
}
