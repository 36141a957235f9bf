/* The page pool: recycled memory is populated again as zeros, and the structure of options
 * is accepted or refused. */
#include "check.h"

#define LEN ((size_t)32 << 20)

static struct tenure_pool_options options_of(size_t max_bytes)
{
    struct tenure_pool_options options;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.max_bytes = max_bytes;
    return options;
}

static void recycled_memory_is_populated_again_as_zeros(int (*recycle)(void *, size_t))
{
    struct tenure_pool_options options = options_of(LEN);
    struct tenure_stats stats;
    options.recycle_released = recycle != tenure_recycle;
    int answer = tenure_pool_configure(&options);
    CHECK(answer == 0 || answer == -EOPNOTSUPP);
    for (int round = 0; round < 4; round++) {
        void *memory;
        CHECK_IS(tenure_mmap(&memory, LEN, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, TENURE_MAP_POPULATE_WRITE),
                 0);
        for (size_t at = 0; at < LEN; at += 512)
            CHECK_IS(((char *)memory)[at], 0);
        memset(memory, 7, LEN);
        CHECK_IS(recycle(memory, LEN), 0);
        CHECK_IS(tenure_drain(-1), 0);
    }
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK(stats.pool_bytes <= LEN);
    CHECK(stats.pool_given.bytes <= stats.pool_recycled_bytes);
    options.max_bytes = 0;
    CHECK_IS(tenure_pool_configure(&options), 0);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(stats.pool_bytes, 0);
}

static void prefill_on_use_waits_for_populate(void)
{
    struct tenure_pool_options options = options_of(LEN);
    struct tenure_stats before, after;
    CHECK_IS(tenure_stats(&before, sizeof(before)), 0);
    options.prefill_bytes = LEN;
    options.prefill_on_use = 1;
    int answer = tenure_pool_configure(&options);
    CHECK(answer == 0 || answer == -EOPNOTSUPP);
    /* A thread that fills the pool would have begun. */
    usleep(100 * 1000);
    CHECK_IS(tenure_stats(&after, sizeof(after)), 0);
    CHECK_IS(after.pool_prefilled_bytes, before.pool_prefilled_bytes);
    options.max_bytes = 0;
    CHECK_IS(tenure_pool_configure(&options), 0);
}

static void options_of_other_version_are_accepted_or_refused(void)
{
    struct {
        struct tenure_pool_options known;
        size_t later;
    } options;
    memset(&options, 0, sizeof(options));
    options.known.size = offsetof(struct tenure_pool_options, prefill_on_use) - 1;
    CHECK_IS(tenure_pool_configure(&options.known), -EINVAL);
    options.known.size = offsetof(struct tenure_pool_options, prefill_on_use);
    CHECK_IS(tenure_pool_configure(&options.known), 0);
    options.known.size = sizeof(options);
    options.later = 1;
    CHECK_IS(tenure_pool_configure(&options.known), -E2BIG);
    options.later = 0;
    CHECK_IS(tenure_pool_configure(&options.known), 0);
    CHECK_IS(tenure_pool_configure(NULL), -EFAULT);
}

int main(void)
{
    recycled_memory_is_populated_again_as_zeros(tenure_recycle);
    recycled_memory_is_populated_again_as_zeros(tenure_munmap);
    prefill_on_use_waits_for_populate();
    options_of_other_version_are_accepted_or_refused();
    return 0;
}
