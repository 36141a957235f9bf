#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 1 << 20;
    void *cache;

    if (tenure_mmap(&cache, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    memset(cache, 1, len);
    if (tenure_mvolatile(cache, len) < 0)
        return 1;
    /* As the kernel would, if it needed the memory. */
    if (tenure_purge(cache, len) < 0)
        return 1;
    if (tenure_mnovolatile(cache, len, NULL, 0, NULL) != 1)
        return 1;
    printf("after purging: %d\n", *(char *)cache);
    return tenure_munmap(cache, len) < 0;
}
