#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 256 << 20;
    void *memory;

    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    memset(memory, 1, len);
    int err = tenure_munmap(memory, len); /* microseconds */
    if (err < 0)
        fprintf(stderr, "munmap: %s\n", strerror(-err));
    return err < 0;
}
