/* Where malloc() has nothing left, functions fail with -ENOMEM and change nothing, or work
 * without memory; the process goes on. */
#include "check.h"

#define LARGE (16u << 20)

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *old, size_t len);
void *__libc_memalign(size_t alignment, size_t len);

/* Of this thread only: tenure's own threads go on. */
static _Thread_local int nothing_left;

void *malloc(size_t len)
{
    return nothing_left ? NULL : __libc_malloc(len);
}

void *calloc(size_t count, size_t len)
{
    return nothing_left ? NULL : __libc_calloc(count, len);
}

void *realloc(void *old, size_t len)
{
    return nothing_left ? NULL : __libc_realloc(old, len);
}

int posix_memalign(void **out, size_t alignment, size_t len)
{
    *out = nothing_left ? NULL : __libc_memalign(alignment, len);
    return *out == NULL ? ENOMEM : 0;
}

#define CHECK_WITHOUT_MEMORY(call, wanted)                                     \
    do {                                                                       \
        nothing_left = 1;                                                      \
        int result_ = call;                                                    \
        nothing_left = 0;                                                      \
        CHECK_IS(result_, wanted);                                             \
    } while (0)

static void functions_without_memory_are_enomem(char *memory, size_t len)
{
    unsigned modes = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT;
    void *mapped = NULL;
    CHECK_WITHOUT_MEMORY(tenure_populate(memory, len, TENURE_POPULATE_WRITE), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_mlock(memory, len, TENURE_LOCK_NOW), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_mlock_with(memory, len, 0, NULL), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_munlock(memory, len, modes), -ENOMEM);
    CHECK_WITHOUT_MEMORY(
        tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_ONFAULT), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_lazy_free(memory, len), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_mvolatile(memory, len), -ENOMEM);
    CHECK_WITHOUT_MEMORY(
        tenure_mvolatile_with(memory, len, 1, TENURE_VOLATILE_OFFER_NOW), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_discard(memory, len), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_mmap(&mapped, len, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                                     TENURE_MAP_POPULATE_WRITE),
                         -ENOMEM);
    CHECK(mapped == NULL);
    CHECK_IS(memory[0], 7);
}

static void volatile_range_without_memory_stays_volatile(char *memory, size_t len)
{
    CHECK_IS(tenure_mvolatile_with(memory, len, 1, TENURE_VOLATILE_OFFER_NOW), 0);
    CHECK_WITHOUT_MEMORY(tenure_mnovolatile(memory, len, NULL, 0, NULL), -ENOMEM);
    CHECK_WITHOUT_MEMORY(tenure_purge(memory, len), -ENOMEM);
    CHECK_IS(tenure_purge(memory, len), 0);
    CHECK_IS(tenure_mnovolatile(memory, len, NULL, 0, NULL), 1);
}

static void release_without_memory_succeeds(void)
{
    size_t small = 4 * page();
    char *memory = map_apart(small), *large = map_apart(LARGE);
    struct tenure_stats stats;
    memset(large, 7, LARGE);
    CHECK_WITHOUT_MEMORY(tenure_munmap(memory, small), 0);
    CHECK_WITHOUT_MEMORY(tenure_munmap(large, LARGE), 0);
    CHECK_IS(msync(large, page(), MS_ASYNC), -1);
    CHECK_WITHOUT_MEMORY(tenure_drain(-1), 0);
    CHECK_WITHOUT_MEMORY(tenure_stats(&stats, sizeof(stats)), 0);
}

int main(void)
{
    size_t len = 16 * page();
    char *memory = map_apart(len);
    memset(memory, 7, len);
    functions_without_memory_are_enomem(memory, len);
    volatile_range_without_memory_stays_volatile(memory, len);
    release_without_memory_succeeds();
    return 0;
}
