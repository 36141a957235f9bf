#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 1 << 20;
    void *picture;

    if (tenure_mmap(&picture, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    memset(picture, 7, len); /* decode it */
    if (tenure_mvolatile(picture, len) < 0)
        return 1;
    /* ... not shown for a while; the kernel may purge it ... */
    int purged = tenure_mnovolatile(picture, len, NULL, 0, NULL);
    if (purged < 0)
        return 1;
    if (purged)
        memset(picture, 7, len); /* decode it again */
    puts(purged ? "decoded again" : "intact");
    return tenure_munmap(picture, len) < 0;
}
