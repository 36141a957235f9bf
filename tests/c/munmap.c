/* tenure_munmap() does what munmap() does, for small and large ranges and with holes (LTP's
 * munmap03 for the errors). */
#include "check.h"

#include <sys/uio.h>

static int is_mapped(char *memory)
{
    unsigned char there;
    return mincore(memory, page(), &there) == 0;
}

/* Whether the byte can be read and is 7. */
static int holds_seven(char *memory)
{
    char byte = 0;
    struct iovec to = {&byte, 1}, from = {memory, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 && byte == 7;
}

static void munmap_small_range_with_hole_unmaps_it(void)
{
    size_t len = 4 * page();
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory + page(), page()), 0);
    CHECK(!is_mapped(memory + page()));
    /* The range has a hole now. */
    CHECK_IS(tenure_munmap(memory, len), 0);
    for (size_t at = 0; at < len; at += page())
        CHECK(!is_mapped(memory + at));
}

/* A worker thread may already have its stack at this address. */
static void munmap_large_range_frees_its_pages(void)
{
    size_t len = (size_t)64 << 20;
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory, len), 0);
    for (size_t at = 0; at < len; at += page())
        CHECK(!holds_seven(memory + at));
}

static void munmap_part_keeps_the_rest(void)
{
    size_t len = (size_t)32 << 20;
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory + page(), len - 2 * page()), 0);
    CHECK(!holds_seven(memory + page()) && !holds_seven(memory + len - 2 * page()));
    CHECK(memory[0] == 7 && memory[len - 1] == 7);
    CHECK_IS(tenure_munmap(memory, page()), 0);
    CHECK_IS(tenure_munmap(memory + len - page(), page()), 0);
}

static void munmap_invalid_range_changes_nothing(void)
{
    char *memory = map(2 * page());
    memory[0] = 7;
    CHECK_IS(tenure_munmap(memory + 1, page()), -EINVAL);
    CHECK_IS(tenure_munmap(memory, page() + 1), -EINVAL);
    CHECK_IS(tenure_munmap(memory, 0), 0);
    CHECK_IS(tenure_munmap(NULL, page()), 0);
    CHECK_IS(tenure_munmap(memory, ~(page() - 1)), -EINVAL);
    CHECK_IS(memory[0], 7);
    CHECK_IS(munmap(memory, 2 * page()), 0);
}

int main(void)
{
    munmap_small_range_with_hole_unmaps_it();
    munmap_large_range_frees_its_pages();
    munmap_part_keeps_the_rest();
    munmap_invalid_range_changes_nothing();
    CHECK_IS(tenure_drain(-1), 0);
    return 0;
}
