/* Alignments up to 64 MiB, for blocks of every size. */
#include "sizes.h"

static void aligned(void)
{
    for (int i = 0; i < SIZES; i++) {
        for (size_t align = sizeof(void *); align <= (size_t)64 << 20; align *= 2) {
            void *block = NULL;
            CHECK_IS(posix_memalign(&block, align, sizes[i]), 0);
            CHECK_IS((uintptr_t)block % align, 0);
            CHECK(malloc_usable_size(block) >= sizes[i]);
            fill(block, sizes[i], 1);
            block = realloc(block, sizes[i] + 1);
            CHECK(block != NULL);
            check_filled(block, sizes[i], sizes[i], 1);
            free(block);
            block = memalign(align, sizes[i]);
            CHECK(block != NULL && (uintptr_t)block % align == 0);
            fill(block, sizes[i], 1);
            free(block);
            block = aligned_alloc(align, (sizes[i] + align - 1) / align * align);
            CHECK(block != NULL && (uintptr_t)block % align == 0);
            fill(block, sizes[i], 1);
            free(block);
        }
        void *block = valloc(sizes[i]);
        CHECK(block != NULL && (uintptr_t)block % page() == 0);
        fill(block, sizes[i], 1);
        free(block);
        block = pvalloc(sizes[i]);
        CHECK(block != NULL && (uintptr_t)block % page() == 0);
        size_t whole = (sizes[i] + page() - 1) / page() * page();
        CHECK(malloc_usable_size(block) >= whole);
        fill(block, whole, 1);
        free(block);
    }
    void *block = &block;
    CHECK_IS(posix_memalign(&block, 3, 100), EINVAL);
    CHECK_IS(posix_memalign(&block, 3, 1 << 20), EINVAL);
    CHECK_IS(posix_memalign(&block, 4, 1 << 20), EINVAL);
    CHECK_IS(posix_memalign(&block, 0, 1 << 20), EINVAL);
    CHECK(block == (void *)&block);
}

int main(void)
{
    aligned();
    return 0;
}
