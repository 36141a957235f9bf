#include <inttypes.h>
#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache *cache;
    struct tenure_cache_stats stats;

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    if (tenure_cache_insert(cache, "cat", 3, "a picture", 9, 2) < 0)
        return 1;
    if (tenure_cache_stats(cache, &stats, sizeof(stats)) < 0)
        return 1;
    printf("%" PRIu64 " values, %" PRIu64 " bytes\n", stats.values, stats.bytes);
    tenure_cache_close(cache);
    return 0;
}
