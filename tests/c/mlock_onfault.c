/* Locks behave as the kernel's self-test mlock2-tests and LTP's mlock201 and mlock203
 * assert: on fault, no page is resident before it is used; otherwise every page is. */
#include "check.h"

static void mlock_onfault_brings_in_used_pages_only(void)
{
    size_t len = 3 * page();
    char *memory = map_apart(len);
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK(has_flag(memory, " lo"));
    CHECK(has_flag(memory, onfault_flag()));
    CHECK_IS(resident(memory, len), 0);
    memory[page()] = 1;
    CHECK_IS(resident(memory, len), 1);
    CHECK_IS(smaps_kib(memory, "Locked:"), page() / 1024);
    /* The second lock does not count again, and changes the mode. */
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_NOW), 0);
    CHECK_IS(resident(memory, len), 3);
    CHECK(!has_flag(memory, " lf"));
    CHECK_IS(smaps_kib(memory, "Locked:"), len / 1024);
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_NOW), 0);
    CHECK(!has_flag(memory, " lo"));
    CHECK_IS(memory[page()], 1);
    CHECK_IS(munmap(memory, len), 0);
}

/* Unlocking a part splits the mapping, and unlocking the rest merges it again. */
static void munlock_part_splits_and_merges_mapping(void)
{
    size_t len = 3 * page();
    char *memory = map_apart(len);
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(tenure_munlock(memory + page(), 1, TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(smaps_kib(memory, "Size:"), page() / 1024);
    CHECK(has_flag(memory, " lo"));
    CHECK(!has_flag(memory + page(), " lo"));
    CHECK(has_flag(memory + 2 * page(), " lo"));
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(smaps_kib(memory, "Size:"), len / 1024);
    CHECK_IS(munmap(memory, len), 0);
}

static void mlock_invalid_call_locks_nothing(void)
{
    size_t len = 3 * page();
    char *memory = map_apart(len);
    CHECK_IS(tenure_mlock(memory + 1, page(), TENURE_LOCK_NOW), -EINVAL);
    CHECK_IS(tenure_mlock(memory, page(), 0), -EINVAL);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT),
             -EINVAL);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_CURRENT), -EINVAL);
    CHECK_IS(tenure_mlock(memory, 0, TENURE_LOCK_NOW), 0);
    CHECK_IS(munmap(memory + page(), page()), 0);
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), -ENOMEM);
    CHECK(!has_flag(memory, " lo"));
    CHECK_IS(mprotect(memory, page(), PROT_NONE), 0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_NOW), -EACCES);
    CHECK(!has_flag(memory, " lo"));
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(tenure_munlock(memory, page(), TENURE_LOCK_ONFAULT), 0);
}

static int has_no_lock(void *memory)
{
    CHECK(!has_flag(memory, " lo"));
    return 0;
}

static void mlock_child_inherits_no_lock(void)
{
    char *memory = map_apart(page());
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_NOW), 0);
    CHECK_IS(in_child(has_no_lock, memory), 0);
    CHECK(has_flag(memory, " lo"));
    CHECK_IS(tenure_munlock(memory, page(), TENURE_LOCK_NOW), 0);
}

int main(void)
{
    mlock_onfault_brings_in_used_pages_only();
    munlock_part_splits_and_merges_mapping();
    mlock_invalid_call_locks_nothing();
    mlock_child_inherits_no_lock();
    return 0;
}
