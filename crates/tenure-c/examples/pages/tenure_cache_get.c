#include <stdio.h>
#include <string.h>
#include <tenure.h>

int main(void)
{
    const char *key = "cat.jpg";
    struct tenure_cache *cache;
    struct tenure_cache_value value;

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    int found = tenure_cache_get(cache, key, strlen(key), &value);
    if (found == 0) {
        /* Make it, and keep it for the next time. */
        static const char picture[4096] = "a picture";
        if (tenure_cache_insert(cache, key, strlen(key), picture, sizeof(picture), 2) < 0)
            return 1;
        puts("decoded");
    } else if (found == 1) {
        puts(value.data);
        tenure_cache_unpin(&value);
    }
    tenure_cache_close(cache);
    return found < 0;
}
