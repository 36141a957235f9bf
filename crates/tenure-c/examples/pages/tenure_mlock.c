#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 10;
    void *memory;

    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    int err = tenure_mlock(memory, len, TENURE_LOCK_ONFAULT);
    if (err == -ENOMEM || err == -EPERM)
        fprintf(stderr, "raise the limit: ulimit -l\n");
    else if (err < 0)
        fprintf(stderr, "lock: %s\n", strerror(-err));
    else
        strcpy(memory, "this page stays in memory; the others use none");
    tenure_munmap(memory, len);
    return err < 0;
}
