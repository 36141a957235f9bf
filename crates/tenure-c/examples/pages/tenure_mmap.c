#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 10;
    void *keys;

    /* Locked on fault, left out of core dumps, zeros in children. */
    int err = tenure_mmap(&keys, len, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                          TENURE_MAP_LOCKONFAULT | TENURE_MAP_NODUMP |
                              TENURE_MAP_WIPEONFORK);
    if (err < 0) {
        fprintf(stderr, "mmap: %s\n", strerror(-err));
        return 1;
    }
    strcpy(keys, "secret");
    return tenure_munmap(keys, len) < 0;
}
