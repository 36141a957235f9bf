/* RLIMIT_MEMLOCK is charged for the whole range, also on fault (the kernel's self-test
 * on-fault-limit, LTP's mlock202). */
#include "check.h"

#include <sys/resource.h>

static void limit(size_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    CHECK_IS(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

static int limited(void *unused)
{
    size_t len = 16 * page();
    char *memory = map_apart(len);
    (void)unused;

    /* Root may lock what it likes. */
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 77;
    limit(8 * page());
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_ONFAULT), -ENOMEM);
    CHECK_IS(tenure_mlock(memory, len, TENURE_LOCK_NOW), -ENOMEM);
    CHECK(!has_flag(memory, " lo"));
    CHECK_IS(tenure_mlock(memory, 8 * page(), TENURE_LOCK_ONFAULT), 0);
    /* Overlaps are not charged twice. */
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
    limit(0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_ONFAULT), -EPERM);
    CHECK_IS(tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_ONFAULT), -EPERM);
    return 0;
}

int main(void)
{
    int status = in_child(limited, NULL);
    if (status == 77)
        skip("root may not become another user here");
    return status;
}
