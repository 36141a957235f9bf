/* tenure_stats() counts calls that succeed, and fills structures of other versions. */
#include "check.h"

int main(void)
{
    struct tenure_stats stats;
    struct {
        struct tenure_stats known;
        uint64_t later[2];
    } larger;
    struct {
        uint64_t known[2];
        uint64_t other;
    } smaller = {{9, 9}, 9};
    size_t len = 4 * page();
    char *memory = map(len);

    CHECK_IS(tenure_stats(NULL, sizeof(stats)), -EFAULT);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(stats.populate.calls, 0);
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_populate(memory, page(), TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_mvolatile(memory, len), 0);
    /* Failed calls do not count. */
    CHECK_IS(tenure_mvolatile(memory, 1), -EINVAL);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(stats.populate.calls, 2);
    CHECK_IS(stats.populate.bytes, 5 * page());
    CHECK_IS(stats.mark_volatile.calls, 1);
    CHECK_IS(stats.mark_volatile.bytes, len);
    CHECK_IS(stats.volatile_bytes, len);

    CHECK_IS(tenure_stats((struct tenure_stats *)(void *)&smaller,
                          sizeof(smaller.known)),
             0);
    CHECK_IS(smaller.known[0], 2);
    CHECK_IS(smaller.known[1], 5 * page());
    CHECK_IS(smaller.other, 9);
    memset(&larger, 9, sizeof(larger));
    CHECK_IS(tenure_stats(&larger.known, sizeof(larger)), 0);
    CHECK_IS(larger.known.populate.calls, 2);
    CHECK(larger.later[0] == 0 && larger.later[1] == 0);
    CHECK_IS(tenure_stats(&stats, 0), 0);
    CHECK(tenure_version()[0] >= '0' && tenure_version()[0] <= '9');
    return 0;
}
