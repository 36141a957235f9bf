#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 20;
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    int err = tenure_populate(memory, len, TENURE_POPULATE_WRITE);
    if (err < 0) {
        fprintf(stderr, "populate: %s\n", strerror(-err));
        return 1;
    }
    memset(memory, 1, len); /* no page faults */
    return tenure_munmap(memory, len) < 0;
}
