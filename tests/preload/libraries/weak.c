/* Has a weak dallocx of its own, in whose place the loader puts that of an allocator. */
#include <stdlib.h>

__attribute__((weak)) void dallocx(void *block, int flags)
{
    if (flags == 0)
        free(block);
}

void release_by_weak(void *block, int flags) { dallocx(block, flags); }
