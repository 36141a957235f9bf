#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 20;
    struct tenure_pool_options options;
    int answer;
    void *memory;

    /* A thread populates 64 MiB before they are needed. */
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.max_bytes = options.prefill_bytes = len;
    answer = tenure_pool_configure(&options);
    if (answer < 0 && answer != -EOPNOTSUPP)
        return 1;
    /* The kernel populates what the pool does not have yet. */
    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                    TENURE_MAP_POPULATE_WRITE) < 0)
        return 1;
    printf("%d\n", *(char *)memory);
    options.max_bytes = 0;
    return tenure_munmap(memory, len) < 0 || tenure_pool_configure(&options) < 0;
}
