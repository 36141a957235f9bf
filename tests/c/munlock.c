/* tenure_munlock() clears the given modes only (LTP's munlock, and the proposed
 * munlock2). */
#include "check.h"

int main(void)
{
    size_t len = 4 * page();
    char *memory = map_apart(len);
    unsigned both = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT;

    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_NOW), 0);
    CHECK_IS(tenure_mlock(memory + 2 * page(), 2 * page(), TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK(has_flag(memory, " lo"));
    CHECK(!has_flag(memory + 2 * page(), " lo"));
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK(has_flag(memory, " lo"));
    CHECK_IS(tenure_munlock(memory, len, both), 0);
    CHECK(!has_flag(memory, " lo"));

    /* Locks made without tenure are cleared as well. */
    others_lock(memory, page());
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    CHECK(has_flag(memory, " lo"));
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_NOW), 0);
    CHECK(!has_flag(memory, " lo"));

    CHECK_IS(tenure_munlock(memory, len, 0), -EINVAL);
    CHECK_IS(tenure_munlock(memory, len, both | TENURE_LOCK_FUTURE), -EINVAL);
    CHECK_IS(tenure_munlock(memory + 1, page(), both), -EINVAL);
    CHECK_IS(munmap(memory + page(), page()), 0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_NOW), 0);
    CHECK_IS(tenure_munlock(memory, len, both), -ENOMEM);
    CHECK(has_flag(memory, " lo"));
    return 0;
}
