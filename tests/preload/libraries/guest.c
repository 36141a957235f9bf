/* A library whose constructor runs before tenure's if LD_PRELOAD names it behind it. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define handlers_are_on guest_handlers_are_on
#define handled guest_handled
#include "../handlers.h"

static char *early_small, *early_large, *early_aligned;

static void must(int holds)
{
    if (!holds)
        _exit(9);
}

__attribute__((constructor)) static void come(void)
{
    void *aligned = NULL;
    early_small = calloc(10, 10);
    early_large = malloc(3 << 20);
    must(posix_memalign(&aligned, 1 << 16, 1 << 20) == 0);
    early_aligned = aligned;
    must(early_small && early_large);
    memset(early_large, 6, 3 << 20);
    char *memory = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    memory[1] = 1;
    must(madvise(memory, 8 << 20, MADV_DONTNEED) == 0 && memory[1] == 0);
    must(munmap(memory, 8 << 20) == 0);
    register_handlers();
}

__attribute__((destructor)) static void go(void)
{
    must(early_large[(3 << 20) - 1] == 6);
    early_large = realloc(early_large, 5 << 20);
    must(early_large && early_large[(3 << 20) - 1] == 6);
    free(early_small);
    free(early_large);
    free(early_aligned);
    free(malloc(1 << 20));
}

void *guest_large(void);
void *guest_large(void)
{
    char *block = malloc(1000000);
    if (block)
        memset(block, 4, 1000000);
    return block;
}
