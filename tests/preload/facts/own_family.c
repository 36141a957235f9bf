/* Has a malloc, calloc, realloc and free of its own, whose blocks no other allocator knows. */
#include "../../basics.h"

#include <errno.h>
#include <stdint.h>

enum { HEADER = 16, MEMORY = 4 << 20 };

static _Alignas(HEADER) char memory[MEMORY];
static size_t used;

static int is_own(const char *block) { return block >= memory && block < memory + MEMORY; }

void *malloc(size_t size)
{
    size_t bytes = HEADER + (size + HEADER - 1) / HEADER * HEADER;
    size_t start = __atomic_fetch_add(&used, bytes, __ATOMIC_RELAXED);
    if (start + bytes > MEMORY)
        return NULL;
    memcpy(memory + start, &size, sizeof(size));
    return memory + start + HEADER;
}

void free(void *block)
{
    if (block != NULL && !is_own(block))
        abort();
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *block, size_t size)
{
    void *other = malloc(size);
    if (block != NULL && other != NULL) {
        size_t old_size;
        if (!is_own(block))
            abort();
        memcpy(&old_size, (char *)block - HEADER, sizeof(old_size));
        memcpy(other, block, old_size < size ? old_size : size);
    }
    return other;
}

int main(void)
{
    char *block = reallocarray(NULL, 10, 10);
    CHECK(block != NULL && is_own(block));
    memset(block, 7, 100);
    block = reallocarray(block, 100, 10);
    CHECK(block != NULL && is_own(block));
    for (int at = 0; at < 100; at++)
        CHECK_IS(block[at], 7);
    volatile size_t too_many = SIZE_MAX;
    CHECK(reallocarray(block, too_many, 2) == NULL && errno == ENOMEM);
    free(block);
    return 0;
}
