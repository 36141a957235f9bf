/* tenure_mnovolatile() reports exactly the pages that were purged. */
#include "check.h"

#define PAGES 16

static char *filled(void)
{
    char *memory = map_apart(PAGES * page());
    memset(memory, 7, PAGES * page());
    return memory;
}

static void volatile_not_purged_is_intact(unsigned flags)
{
    size_t len = PAGES * page(), count = 99;
    char *memory = filled();
    struct tenure_range run = {NULL, 5};
    CHECK_IS(tenure_mvolatile_with(memory, len, 3, flags), 0);
    CHECK_IS(memory[0], 7);
    memory[1] = 8;
    CHECK_IS(tenure_mnovolatile(memory, len, &run, 1, &count), 0);
    CHECK_IS(count, 0);
    CHECK(run.addr == NULL && run.len == 5);
    CHECK(memory[0] == 7 && memory[1] == 8 && memory[len - 1] == 7);
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static void purged_runs_are_reported(unsigned flags)
{
    size_t len = PAGES * page(), count = 99;
    char *memory = filled();
    struct tenure_range runs[2];

    CHECK_IS(tenure_mvolatile_with(memory, len, 0, flags), 0);
    CHECK_IS(tenure_purge(memory + page(), page()), 0);
    CHECK_IS(tenure_purge(memory + 4 * page(), 2 * page()), 0);
    CHECK_IS(tenure_purge(memory + 9 * page(), page()), 0);
    CHECK_IS(tenure_mnovolatile(memory, len, runs, 2, &count), 1);
    CHECK_IS(count, 3);
    CHECK(runs[0].addr == memory + page() && runs[0].len == page());
    CHECK(runs[1].addr == memory + 4 * page() && runs[1].len == 2 * page());
    for (size_t i = 0; i < PAGES; i++) {
        int is_purged = i == 1 || i == 4 || i == 5 || i == 9;
        CHECK_IS(memory[i * page()], is_purged ? 0 : 7);
    }
    /* Ordinary memory again. */
    memset(memory, 1, len);
    CHECK_IS(tenure_mnovolatile(memory, len, NULL, 0, NULL), 0);
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static void mnovolatile_null_outputs_are_accepted(void)
{
    size_t len = PAGES * page(), count = 99;
    char *memory = filled();
    struct tenure_range run = {NULL, 5};
    CHECK_IS(tenure_mvolatile(memory, len), 0);
    CHECK_IS(tenure_purge(memory, page()), 0);
    CHECK_IS(tenure_mnovolatile(memory, len, NULL, 7, NULL), 1);
    CHECK_IS(tenure_mvolatile(memory, len), 0);
    CHECK_IS(tenure_purge(memory, len), 0);
    CHECK_IS(tenure_mnovolatile(memory, len, &run, 0, &count), 1);
    CHECK_IS(count, 1);
    CHECK(run.addr == NULL && run.len == 5);
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static void volatile_invalid_call_changes_nothing(void)
{
    size_t len = PAGES * page(), count = 99;
    char *memory = filled();
    CHECK_IS(tenure_mvolatile(memory + 1, page()), -EINVAL);
    CHECK_IS(tenure_mvolatile(memory, 1), -EINVAL);
    CHECK_IS(tenure_mvolatile(memory, 0), 0);
    CHECK_IS(tenure_mvolatile_with(memory, len, 4, 0), -EINVAL);
    CHECK_IS(tenure_mvolatile_with(memory, len, 0, 2), -EINVAL);
    CHECK_IS(tenure_purge(memory, 1), -EINVAL);
    CHECK_IS(tenure_mnovolatile(memory, 1, NULL, 0, &count), -EINVAL);
    CHECK_IS(count, 99);
    /* Nonvolatile pages are not purged. */
    CHECK_IS(tenure_purge(memory, len), 0);
    CHECK_IS(memory[0], 7);

    CHECK_IS(mprotect(memory, page(), PROT_READ), 0);
    CHECK_IS(tenure_mvolatile(memory, len), -EACCES);
    CHECK_IS(mprotect(memory, page(), PROT_READ | PROT_WRITE), 0);
    others_lock(memory, page());
    CHECK_IS(tenure_mvolatile(memory, len), -EINVAL);
    others_unlock(memory, page());
    CHECK_IS(munmap(memory + page(), page()), 0);
    CHECK_IS(tenure_mvolatile(memory, len), -ENOMEM);
    CHECK_IS(tenure_purge(memory, len), -ENOMEM);
    CHECK_IS(memory[0], 7);
}

int main(void)
{
    volatile_not_purged_is_intact(0);
    volatile_not_purged_is_intact(TENURE_VOLATILE_OFFER_NOW);
    purged_runs_are_reported(0);
    purged_runs_are_reported(TENURE_VOLATILE_OFFER_NOW);
    mnovolatile_null_outputs_are_accepted();
    volatile_invalid_call_changes_nothing();
    return 0;
}
