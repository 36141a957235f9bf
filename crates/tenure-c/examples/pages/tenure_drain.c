#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 20;
    void *memory;
    struct tenure_stats stats;

    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    memset(memory, 1, len);
    if (tenure_munmap(memory, len) < 0)
        return 1;
    /* Wait until the memory is free for other processes. */
    while (tenure_drain(100) == -ETIMEDOUT) {
        tenure_stats(&stats, sizeof(stats));
        printf("%llu bytes pending\n",
               (unsigned long long)stats.pending_release_bytes);
    }
    return 0;
}
