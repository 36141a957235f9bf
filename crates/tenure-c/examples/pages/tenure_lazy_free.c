#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 1 << 20;
    void *buffer;

    if (tenure_mmap(&buffer, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    for (int job = 0; job < 10; job++) {
        memset(buffer, job, len); /* a write cancels the lazy free */
        if (tenure_lazy_free(buffer, len) < 0)
            return 1;
    }
    return tenure_munmap(buffer, len) < 0;
}
