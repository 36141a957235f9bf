/* tenure_mlockall() locks all memory, on fault or now, of current and future mappings. */
#include "check.h"

static int mlockall_onfault_locks_current_and_future(void *unused)
{
    size_t len = 4 * page();
    char *before = map_apart(len);
    (void)unused;

    int answer = tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_FUTURE |
                                 TENURE_LOCK_ONFAULT);
    if (answer == -ENOMEM || answer == -EPERM)
        return 77;
    CHECK_IS(answer, 0);
    CHECK(has_flag(before, onfault_flag()));
    CHECK_IS(resident(before, len), 0);
    char *after = map_apart(len);
    CHECK(has_flag(after, onfault_flag()));
    CHECK_IS(resident(after, len), 0);
    /* MAP_POPULATE would fault no page in here. */
    CHECK_IS(tenure_populate(after, len, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(resident(after, len), 4);

    CHECK_IS(tenure_munlockall(TENURE_LOCK_NOW), 0);
    CHECK(has_flag(before, onfault_flag()));
    CHECK_IS(tenure_munlockall(TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT), 0);
    CHECK(!has_flag(before, " lo"));
    CHECK(!has_flag(map_apart(len), " lo"));
    return 0;
}

int main(void)
{
    CHECK_IS(tenure_mlockall(0), -EINVAL);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_ONFAULT), -EINVAL);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT), -EINVAL);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_NOW |
                             TENURE_LOCK_ONFAULT),
             -EINVAL);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_NOW | 0x80), -EINVAL);
    CHECK_IS(tenure_munlockall(0), -EINVAL);
    CHECK_IS(tenure_munlockall(TENURE_LOCK_CURRENT), -EINVAL);
    int status = in_child(mlockall_onfault_locks_current_and_future, NULL);
    if (status == 77)
        skip("RLIMIT_MEMLOCK does not allow locking all memory");
    return status;
}
