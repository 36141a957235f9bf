/* A library with malloc functions of its own, which call the next ones: as tools have that
 * count or trace. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static long calls;
static void *(*next_malloc)(size_t);
static void (*next_free)(void *);

/* All at once: dlsym() itself may call free(). */
static void look_up(void)
{
    void (*found)(void *) = (void (*)(void *))(long)dlsym(RTLD_NEXT, "free");
    next_malloc = (void *(*)(size_t))(long)dlsym(RTLD_NEXT, "malloc");
    next_free = found;
}

void *malloc(size_t size)
{
    if (!next_malloc)
        look_up();
    calls++;
    return next_malloc(size);
}

void free(void *block)
{
    if (next_free)
        next_free(block);
}

__attribute__((constructor)) static void begin(void)
{
    if (!next_free)
        look_up();
}

__attribute__((destructor)) static void end(void)
{
    if (calls == 0)
        _exit(9);
}
