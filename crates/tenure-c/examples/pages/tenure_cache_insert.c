#include <stdio.h>
#include <string.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache *cache;
    char block[16384];

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    for (unsigned number = 0; number < 100; number++) {
        memset(block, (int)number, sizeof(block));
        /* The first ten are given up last. */
        unsigned priority = number < 10 ? 3 : 2;
        int result = tenure_cache_insert(cache, &number, sizeof(number), block,
                                         sizeof(block), priority);
        if (result < 0) {
            fprintf(stderr, "%s\n", strerror(-result));
            return 1;
        }
    }
    puts("100 blocks are cached while there is memory");
    tenure_cache_close(cache);
    return 0;
}
