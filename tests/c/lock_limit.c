/* The whole range counts against RLIMIT_MEMLOCK, also on fault (the kernel's self-test
 * on-fault-limit, LTP's mlock202). */
#include "check.h"

#include <sys/resource.h>

static void set_limit(size_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    CHECK_IS(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

static int lock_past_limit_fails_and_changes_nothing(void *unused)
{
    size_t len = 16 * page();
    char *memory = map_apart(len);
    (void)unused;

    /* The limit does not bind root. */
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 77;
    set_limit(8 * page());
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), -ENOMEM);
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_NOW), -ENOMEM);
    CHECK(!has_flag(memory, " lo"));
    CHECK_IS(tenure_mlock(memory, 8 * page(), TENURE_LOCK_ONFAULT), 0);
    /* Overlaps count once. */
    CHECK_IS(tenure_mlock(memory, 8 * page(), TENURE_LOCK_NOW), 0);
    CHECK_IS(tenure_mlock(memory + 8 * page(), 1, TENURE_LOCK_ONFAULT), -ENOMEM);

    void *mapped = memory;
    CHECK_IS(tenure_mmap(&mapped, len, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                         TENURE_MAP_LOCKONFAULT),
             -ENOMEM);
    CHECK(mapped == memory);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_ONFAULT), -ENOMEM);

    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT), 0);
    set_limit(0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_ONFAULT), -EPERM);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_ONFAULT), -EPERM);
    return 0;
}

int main(void)
{
    int status = in_child(lock_past_limit_fails_and_changes_nothing, NULL);
    if (status == 77)
        skip("root may not become another user here");
    return status;
}
