/* Blocks cross the threshold between small and large: contents are kept, and calloc
 * returns zeros. */
#include "sizes.h"

static void crossing(void)
{
    for (int from = 0; from < SIZES; from++) {
        for (int to = 0; to < SIZES; to++) {
            size_t min = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
            unsigned char *block = malloc(sizes[from]);
            CHECK(block != NULL);
            CHECK(malloc_usable_size(block) >= sizes[from]);
            fill(block, sizes[from], 3);
            block = realloc(block, sizes[to]);
            CHECK(block != NULL);
            CHECK(malloc_usable_size(block) >= sizes[to]);
            check_filled(block, min, sizes[from], 3);
            fill(block, sizes[to], 5);
            block = realloc(block, sizes[from]);
            CHECK(block != NULL);
            check_filled(block, min, sizes[to], 5);
            free(block);
        }
    }
}

static void growing(void)
{
    size_t len = 1000;
    unsigned char *block = NULL;
    size_t filled = 0;
    while (len < (size_t)64 << 20) {
        block = realloc(block, len);
        CHECK(block != NULL);
        if (filled > 0)
            check_filled(block, filled, filled, 7);
        fill(block, len, 7);
        filled = len;
        len += len / 2;
    }
    /* The block is usable up to malloc_usable_size(). */
    memset(block, 1, malloc_usable_size(block));
    free(block);
}

static void zeroed(void)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIZES; i++) {
            unsigned char *block = calloc(sizes[i], 1);
            CHECK(block != NULL);
            for (size_t at = 0; at < sizes[i]; at++)
                if (block[at] != 0)
                    CHECK_IS(block[at], 0);
            memset(block, 0xff, sizes[i]);
            free(block);
        }
    }
}

static void null_and_zero(void)
{
    free(NULL);
    CHECK_IS(malloc_usable_size(NULL), 0);
    free(malloc(0));
    free(realloc(NULL, 0));
    void *block = realloc(NULL, 1 << 20);
    CHECK(block != NULL);
    free(realloc(block, 0));
}

/* free() preserves errno in every C library, a successful malloc() in good ones. */
static void errno_is_kept(void)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIZES; i++) {
            void *block = malloc(sizes[i]);
            CHECK(block != NULL);
            memset(block, 1, sizes[i]);
            errno = 77;
            free(block);
            CHECK_IS(errno, 77);
        }
    }
}

int main(void)
{
    crossing();
    growing();
    zeroed();
    null_and_zero();
    errno_is_kept();
    return 0;
}
