#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 10;
    void *memory;

    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    /* The first half is locked in one mode, the second in the other. */
    int err = tenure_mlock(memory, len, TENURE_LOCK_NOW);
    if (err == 0)
        err = tenure_mlock(memory, len / 2, TENURE_LOCK_ONFAULT);
    /* Only the first half is unlocked. */
    if (err == 0)
        err = tenure_munlock(memory, len, TENURE_LOCK_ONFAULT);
    tenure_munmap(memory, len);
    return err < 0;
}
