#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 20;
    struct tenure_pool_options options;
    struct tenure_stats stats;
    int round, answer;
    void *memory;

    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.max_bytes = len;
    answer = tenure_pool_configure(&options);
    if (answer < 0 && answer != -EOPNOTSUPP)
        return 1;
    for (round = 0; round < 2; round++) {
        if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                        TENURE_MAP_POPULATE_WRITE) < 0)
            return 1;
        memset(memory, 1, len);
        /* The pages go to the pool, and the next round takes them from there. */
        if (tenure_recycle(memory, len) < 0)
            return 1;
        tenure_drain(10000);
    }
    tenure_stats(&stats, sizeof(stats));
    printf("%llu bytes came from the pool\n",
           (unsigned long long)stats.pool_given.bytes);
    options.max_bytes = 0;
    return tenure_pool_configure(&options) < 0;
}
