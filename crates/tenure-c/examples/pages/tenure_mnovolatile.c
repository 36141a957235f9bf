#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    size_t len = 1 << 20, count;
    void *table;
    struct tenure_range purged[16];

    if (tenure_mmap(&table, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0) < 0)
        return 1;
    memset(table, 1, len);
    if (tenure_mvolatile(table, len) < 0 || tenure_purge(table, len / 2) < 0)
        return 1;
    int outcome = tenure_mnovolatile(table, len, purged, 16, &count);
    for (size_t i = 0; outcome == 1 && i < count && i < 16; i++)
        printf("purged: %zu bytes at offset %td\n", purged[i].len,
               (char *)purged[i].addr - (char *)table);
    tenure_munmap(table, len);
    return outcome < 0;
}
