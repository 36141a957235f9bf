/* tenure_populate() does what MADV_POPULATE_READ and MADV_POPULATE_WRITE do, and fails
 * where they fail (as the kernel's self-test madv_populate asserts), but changes
 * nothing when a part is not mapped. */
#include "check.h"

static void populate_write_brings_pages_in(void)
{
    size_t len = 32 * page();
    char *memory = map(len);
    CHECK_IS(resident(memory, len), 0);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(resident(memory, len), 32);
    CHECK(memory[0] == 0 && memory[len - 1] == 0);
    /* Contents stay when the range is populated again. */
    memset(memory, 7, len);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_READ), 0);
    CHECK(memory[0] == 7 && memory[len - 1] == 7);
    CHECK_IS(munmap(memory, len), 0);
}

static void populate_read_uses_no_memory(void)
{
    size_t len = 32 * page();
    char *memory = map_apart(len);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_READ), 0);
    CHECK_IS(smaps_kib(memory, "Rss:"), 0);
    CHECK_IS(munmap(memory, len), 0);
}

static void populate_length_is_rounded_up_and_zero_does_nothing(void)
{
    char *memory = map(4 * page());
    CHECK_IS(tenure_populate(memory, 0, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(resident(memory, 4 * page()), 0);
    CHECK_IS(tenure_populate(memory, page() + 1, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(resident(memory, 4 * page()), 2);
    CHECK_IS(munmap(memory, 4 * page()), 0);
}

static void populate_invalid_call_changes_nothing(void)
{
    size_t len = 8 * page();
    char *memory = map(len);

    CHECK_IS(tenure_populate(memory + 1, page(), TENURE_POPULATE_READ), -EINVAL);
    CHECK_IS(tenure_populate(memory + 1, 0, TENURE_POPULATE_READ), -EINVAL);
    CHECK_IS(tenure_populate(memory, len, 0), -EINVAL);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_FORCE), -EINVAL);
    CHECK_IS(tenure_populate(memory, len,
                             TENURE_POPULATE_READ | TENURE_POPULATE_WRITE),
             -EINVAL);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_READ | 0x80), -EINVAL);
    CHECK_IS(tenure_populate(memory, SIZE_MAX, TENURE_POPULATE_READ), -EINVAL);

    /* The kernel would have populated the pages before the hole. */
    CHECK_IS(munmap(memory + 4 * page(), page()), 0);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), -ENOMEM);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_READ), -ENOMEM);
    CHECK_IS(resident(memory, 4 * page()), 0);
    CHECK_IS(tenure_populate(memory + 4 * page(), page(), TENURE_POPULATE_READ),
             -ENOMEM);

    CHECK_IS(mprotect(memory, page(), PROT_READ), 0);
    CHECK_IS(tenure_populate(memory, 2 * page(), TENURE_POPULATE_WRITE), -EACCES);
    CHECK_IS(tenure_populate(memory, 2 * page(), TENURE_POPULATE_READ), 0);
    CHECK_IS(mprotect(memory, page(), PROT_NONE), 0);
    CHECK_IS(tenure_populate(memory, 2 * page(), TENURE_POPULATE_READ), -EACCES);
    CHECK_IS(munmap(memory, len), 0);
}

static void populate_past_end_of_file_is_efault(void)
{
    int fd = memfd_create("short", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_IS(ftruncate(fd, (off_t)page()), 0);
    void *memory = mmap(NULL, 4 * page(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_IS(tenure_populate(memory, page(), TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_populate(memory, 4 * page(), TENURE_POPULATE_WRITE), -EFAULT);
    CHECK_IS(tenure_populate(memory, 4 * page(), TENURE_POPULATE_READ), -EFAULT);
    CHECK_IS(munmap(memory, 4 * page()), 0);
    close(fd);
}

int main(void)
{
    populate_write_brings_pages_in();
    populate_read_uses_no_memory();
    populate_length_is_rounded_up_and_zero_does_nothing();
    populate_invalid_call_changes_nothing();
    populate_past_end_of_file_is_efault();
    return 0;
}
