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
    /* ... not shown for a while; the kernel may take it ... */
    int lost = tenure_mnovolatile(picture, len, NULL, 0, NULL);
    if (lost < 0)
        return 1;
    if (lost)
        memset(picture, 7, len); /* decode it again */
    puts(lost ? "decoded again" : "still there");
    return tenure_munmap(picture, len) < 0;
}
