#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache *cache;
    struct tenure_cache_value value;

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    if (tenure_cache_insert(cache, "cat", 3, "a picture", 9, 2) < 0)
        return 1;
    int found = tenure_cache_get(cache, "cat", 3, &value);
    tenure_cache_close(cache);
    if (found == 1) {
        /* A pinned value outlives the cache. */
        printf("%.*s\n", (int)value.len, (const char *)value.data);
        tenure_cache_unpin(&value);
    }
    return found < 0;
}
