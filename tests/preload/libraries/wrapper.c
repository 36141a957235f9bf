/* A library with malloc functions that call the next ones, like those of tools that count
 * or trace. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static long calls;
static void *(*next_malloc)(size_t);
static void (*next_free)(void *);
static void *(*next_aligned)(size_t, size_t);

/* Resolves all at once, because dlsym() itself may call free(). */
static void resolve(void)
{
    void (*found)(void *) = (void (*)(void *))(long)dlsym(RTLD_NEXT, "free");
    next_aligned = (void *(*)(size_t, size_t))(long)dlsym(RTLD_NEXT, "aligned_alloc");
    next_malloc = (void *(*)(size_t))(long)dlsym(RTLD_NEXT, "malloc");
    next_free = found;
}

void *malloc(size_t size)
{
    if (!next_malloc)
        resolve();
    calls++;
    return next_malloc(size);
}

void *aligned_alloc(size_t align, size_t size)
{
    if (!next_malloc)
        resolve();
    return next_aligned(align, size);
}

void free(void *block)
{
    if (next_free)
        next_free(block);
}

__attribute__((constructor)) static void begin(void)
{
    if (!next_free)
        resolve();
}

__attribute__((destructor)) static void end(void)
{
    if (calls == 0)
        _exit(9);
}
