/* Impossible sizes fail with ENOMEM, and a block that cannot grow stays as it is. */
#include "sizes.h"

static void refused(void)
{
    /* volatile, because compilers know these functions. */
    volatile size_t huge = SIZE_MAX / 2 + 2, max = SIZE_MAX;
    errno = 0;
    CHECK(calloc(huge, 2) == NULL);
    CHECK_IS(errno, ENOMEM);
    errno = 0;
    CHECK(malloc(max) == NULL);
    CHECK_IS(errno, ENOMEM);
    errno = 0;
    CHECK(pvalloc(max) == NULL);
    CHECK_IS(errno, ENOMEM);
    for (int i = 0; i < SIZES; i++) {
        unsigned char *block = malloc(sizes[i]);
        fill(block, sizes[i], 9);
        errno = 0;
        CHECK(reallocarray(block, huge, 2) == NULL);
        CHECK_IS(errno, ENOMEM);
        errno = 0;
        CHECK(realloc(block, max) == NULL);
        CHECK_IS(errno, ENOMEM);
        check_filled(block, sizes[i], sizes[i], 9);
        block = reallocarray(block, sizes[i], 2);
        CHECK(block != NULL);
        check_filled(block, sizes[i], sizes[i], 9);
        free(block);
    }
}

int main(void)
{
    refused();
    return 0;
}
