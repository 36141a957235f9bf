#include <inttypes.h>
#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_stats stats;

    if (tenure_stats(&stats, sizeof(stats)) < 0)
        return 1;
    printf("volatile: %" PRIu64 " bytes\n", stats.volatile_bytes);
    printf("populated in %" PRIu64 " calls: %" PRIu64 " bytes\n",
           stats.populate.calls, stats.populate.bytes);
    printf("purged by the kernel: %" PRIu64 " bytes\n",
           stats.purged_by_kernel_bytes);
    return 0;
}
