#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 64 << 20;
    char *arena;
    void *memory;

    if (tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    arena = memory;
    memset(arena, 1, len);
    /* Start again with zeros, without waiting until the pages are free. */
    if (tenure_discard(arena, len) < 0 || arena[0] != 0)
        return 1;
    return tenure_munmap(memory, len) < 0;
}
