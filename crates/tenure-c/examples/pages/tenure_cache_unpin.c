#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache *cache;
    struct tenure_cache_value value;

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    if (tenure_cache_insert(cache, "answer", 6, "42", 2, 2) < 0)
        return 1;
    if (tenure_cache_get(cache, "answer", 6, &value) == 1)
        printf("%.*s\n", (int)value.len, (const char *)value.data);
    /* The kernel may purge it from now on. Nothing is done if there was none. */
    tenure_cache_unpin(&value);
    tenure_cache_close(cache);
    return 0;
}
