#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 1 << 20;
    void *preview, *original;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;

    if (tenure_mmap(&preview, len, prot, flags, -1, 0, 0) < 0 ||
        tenure_mmap(&original, len, prot, flags, -1, 0, 0) < 0)
        return 1;
    /* The preview is purged first: it can be made again from the original. */
    if (tenure_mvolatile_with(preview, len, 0, 0) < 0 ||
        tenure_mvolatile_with(original, len, 3, TENURE_VOLATILE_OFFER_NOW) < 0)
        return 1;
    return tenure_munmap(preview, len) < 0 || tenure_munmap(original, len) < 0;
}
