/* Every function of malloc's family, with and without the heap. An argument says that the
 * heap is on: then no large block is the C library's. */
#include "../../basics.h"

#include <dlfcn.h>
#include <malloc.h>

enum { LARGE = 5 << 20 };

static int heap_is_on;

/* The old name of free, with which programs are linked that are older than glibc 2.26. */
#if defined(__x86_64__)
extern void old_cfree(void *block);
__asm__(".symver old_cfree,cfree@GLIBC_2.2.5");
#else
#define old_cfree free
#endif

/* Returns what the C library itself has in use. */
static size_t in_use_by_libc(void)
{
    static struct mallinfo2 (*info)(void);
    if (info == NULL) {
        void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
        CHECK(library != NULL);
        *(void **)&info = dlsym(library, "mallinfo2");
        CHECK(info != NULL);
    }
    struct mallinfo2 figures = info();
    return figures.uordblks + figures.hblkhd;
}

static void check(void *block, size_t align, size_t before)
{
    CHECK(block != NULL);
    CHECK_IS((uintptr_t)block % align, 0);
    CHECK(malloc_usable_size(block) >= LARGE);
    memset(block, 1, malloc_usable_size(block));
    CHECK((in_use_by_libc() < before + LARGE) == heap_is_on);
}

static void blocks(void)
{
    void *block = NULL;
    volatile size_t too_many = SIZE_MAX / 4;
    size_t before = in_use_by_libc();
    check(block = malloc(LARGE), 16, before);
    free(block);
    check(block = calloc(LARGE / 4, 4), 16, before);
    check(block = realloc(block, LARGE + 1), 16, before);
    old_cfree(block);
    check(block = reallocarray(NULL, LARGE / 8, 8), 16, before);
    check(block = reallocarray(block, LARGE / 4, 8), 16, before);
    errno = 0;
    CHECK(reallocarray(block, too_many, 8) == NULL);
    CHECK_IS(errno, ENOMEM);
    free(block);
    CHECK_IS(posix_memalign(&block, 64 << 10, LARGE), 0);
    check(block, 64 << 10, before);
    free(block);
    check(block = aligned_alloc(128, LARGE), 128, before);
    free(block);
    check(block = memalign(8 << 10, LARGE), 8 << 10, before);
    free(block);
    check(block = valloc(LARGE), page(), before);
    free(block);
    check(block = pvalloc(LARGE - 1), page(), before);
    free(block);
}

/* Blocks that the C library makes for the program. */
static void blocks_of_functions(void)
{
    char *text = malloc(LARGE), *copy;
    CHECK(text != NULL);
    memset(text, 'x', LARGE - 1);
    text[LARGE - 1] = 0;
    CHECK((copy = strdup(text)) != NULL && strcmp(copy, text) == 0);
    free(copy);
    CHECK_IS(asprintf(&copy, "%s%s", text, text), 2 * (LARGE - 1));
    free(copy);
    free(text);
}

static size_t resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return (size_t)pages * page();
}

/* Memory pressure may have returned the block's pages already. */
static void trimmed(void)
{
    for (int tries = 0; tries < 100; tries++) {
        char *block = malloc(2 * LARGE);
        CHECK(block != NULL);
        memset(block, 1, 2 * LARGE);
        size_t with_block = resident_bytes();
        free(block);
        if (malloc_trim(0) == 1 || !heap_is_on) {
            /* Another thread may be returning a part. */
            while (resident_bytes() + LARGE > with_block)
                usleep(1000);
            return;
        }
    }
    CHECK(!"malloc_trim returns 1");
}

static void figures(void)
{
    struct mallinfo2 before = mallinfo2();
    void *block = malloc(LARGE);
    struct mallinfo2 after = mallinfo2();
    CHECK(block != NULL);
    CHECK(after.uordblks + after.hblkhd >= before.uordblks + before.hblkhd + LARGE);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo small = mallinfo();
    CHECK(small.uordblks + small.hblkhd >= LARGE);
    char *text = NULL;
    size_t len = 0, size = 0, max = 0;
    FILE *stream = open_memstream(&text, &len);
    CHECK(stream != NULL);
    CHECK_IS(malloc_info(1, stream), EINVAL);
    CHECK_IS(malloc_info(0, stream), 0);
    fclose(stream);
    CHECK(strncmp(text, "<malloc version=\"1\">", 20) == 0);
    CHECK(strstr(text, "</malloc>") != NULL);
    for (char *at = text; (at = strstr(at, " size=\"")) != NULL; at++)
        if (sscanf(at, " size=\"%zu", &size) == 1 && size > max)
            max = size;
    CHECK(max >= LARGE);
    free(text);
    free(block);
}

int main(int count, char **arguments)
{
    (void)arguments;
    heap_is_on = count > 1;
    CHECK_IS(mallopt(M_TRIM_THRESHOLD, 1 << 20), 1);
    CHECK_IS(mallopt(M_MMAP_THRESHOLD, 1 << 20), 1);
    CHECK_IS(mallopt(M_ARENA_MAX, 2), 1);
    blocks();
    blocks_of_functions();
    trimmed();
    figures();
    malloc_stats();
    return 0;
}
