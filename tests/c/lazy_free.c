/* A lazily freed page that is written again keeps its contents (LTP's madvise09); a range
 * that MADV_FREE refuses is an error (madvise02), and with a hole nothing changes. */
#include "check.h"

static void lazy_free_written_page_is_kept(void)
{
    size_t len = 64 * page();
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_lazy_free(memory, len), 0);
    memory[0] = 9;
    /* Reclaims the pages that are still lazily free, as memory pressure would. */
    CHECK_IS(madvise(memory, len, MADV_PAGEOUT), 0);
    CHECK_IS(memory[0], 9);
    CHECK_IS(memory[1], 7);
    for (size_t at = page(); at < len; at += page())
        CHECK(memory[at] == 0 || memory[at] == 7);
    CHECK_IS(munmap(memory, len), 0);
}

static void lazy_free_invalid_range_changes_nothing(void)
{
    size_t len = 4 * page();
    char *memory = map_apart(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_lazy_free(memory + 1, page()), -EINVAL);
    CHECK_IS(tenure_lazy_free(memory, 1), -EINVAL);
    CHECK_IS(tenure_lazy_free(memory, page() + 1), -EINVAL);
    CHECK_IS(tenure_lazy_free(memory, 0), 0);

    void *shared = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_IS(tenure_lazy_free(shared, len), -EINVAL);

    others_lock(memory + page(), page());
    CHECK_IS(tenure_lazy_free(memory, len), -EINVAL);
    others_unlock(memory, len);

    CHECK_IS(munmap(memory + 2 * page(), page()), 0);
    CHECK_IS(tenure_lazy_free(memory, len), -ENOMEM);
    madvise(memory, page(), MADV_PAGEOUT);
    CHECK_IS(memory[0], 7);
}

int main(void)
{
    lazy_free_written_page_is_kept();
    lazy_free_invalid_range_changes_nothing();
    return 0;
}
