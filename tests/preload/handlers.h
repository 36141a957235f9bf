/* Fork handlers that use memory, as those of a library do that empties its cache before a
 * fork: in all three phases. */
#ifndef HANDLERS_H
#define HANDLERS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A library may name them otherwise, and export them. */
#ifndef handled
static
#endif
int handlers_are_on, handled;

static void must_hold(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "in a fork handler: %s\n", what);
        _exit(9);
    }
}

static void use_memory(void)
{
    const size_t large = 64 << 20, block = 300 << 10;
    /* MAP_NORESERVE: it is not to be populated. */
    char *memory = mmap(NULL, large, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must_hold(memory != MAP_FAILED, "mmap");
    memory[5 << 20] = 1;
    must_hold(madvise(memory, large, MADV_DONTNEED) == 0, "madvise");
    must_hold(memory[5 << 20] == 0, "discarded memory is zero");
    must_hold(munmap(memory, large) == 0, "munmap");
    memory = mmap(NULL, 5 * block, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must_hold(memory != MAP_FAILED && !munmap(memory, 5 * block), "mmap");
    char *small = malloc(100), *big = malloc(block), *zeros = calloc(1, block);
    must_hold(small && big && zeros, "malloc");
    memset(big, 5, block);
    big = realloc(big, 20 * block);
    must_hold(big && big[0] == 5 && big[block - 1] == 5, "realloc");
    must_hold(!zeros[0] && !zeros[block - 1], "calloc");
    free(big);
    free(zeros);
    free(small);
}

static void handle_fork(void)
{
    if (handlers_are_on) {
        handled++;
        use_memory();
    }
}

static void register_handlers(void)
{
    must_hold(!pthread_atfork(handle_fork, handle_fork, handle_fork), "atfork");
}

#endif
