/* Grows blocks, some of them from before the heap is on, and uses operators new and delete, with an
 * allocator behind the heap that defines few functions. */
#include "../../basics.h"

extern char *early;
extern void *_Znwm(size_t);
extern void *_Znam(size_t);
extern void _ZdlPv(void *);
extern void _ZdaPv(void *);

static char *grown(char *block, size_t old_size, size_t size)
{
    char *moved = realloc(block, size);
    CHECK(moved != NULL);
    for (size_t at = 0; at < old_size; at++)
        CHECK_IS(moved[at], 7);
    return memset(moved, 7, size);
}

int main(void)
{
    free(grown(grown(early, 1000, 5000), 5000, 500000));
    for (size_t size = 1; size < 5000; size += 7) {
        char *block = malloc(size);
        CHECK(block != NULL);
        free(grown(memset(block, 7, size), size, 100 * size));
        _ZdlPv(memset(_Znwm(size), 1, size));
        _ZdaPv(memset(_Znam(size), 1, size));
        free(memset(_Znam(size), 1, size));
    }
    return 0;
}
