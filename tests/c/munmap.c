/* Unmapping means what munmap() means, holes included (LTP's munmap03 for what it
 * refuses), large and small. */
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

static void unmaps_small(void)
{
    size_t len = 4 * page();
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory + page(), page()), 0);
    CHECK(!is_mapped(memory + page()));
    /* Holes are fine. */
    CHECK_IS(tenure_munmap(memory, len), 0);
    for (size_t at = 0; at < len; at += page())
        CHECK(!is_mapped(memory + at));
}

/* A thread that frees may have its stack in this place already. */
static void unmaps_large(void)
{
    size_t len = (size_t)64 << 20;
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory, len), 0);
    for (size_t at = 0; at < len; at += page())
        CHECK(!holds_seven(memory + at));
}

static void a_part(void)
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

static void refuses(void)
{
    char *memory = map(2 * page());
    memory[0] = 7;
    CHECK_IS(tenure_munmap(memory + 1, page()), -EINVAL);
    CHECK_IS(tenure_munmap(memory, page() + 1), -EINVAL);
    CHECK_IS(tenure_munmap(memory, 0), 0);
    CHECK_IS(tenure_munmap(memory, ~(page() - 1)), -EINVAL);
    CHECK_IS(memory[0], 7);
    CHECK_IS(munmap(memory, 2 * page()), 0);
}

int main(void)
{
    unmaps_small();
    unmaps_large();
    a_part();
    refuses();
    CHECK_IS(tenure_drain(-1), 0);
    return 0;
}
