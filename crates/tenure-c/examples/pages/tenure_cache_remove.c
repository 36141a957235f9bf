#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache *cache;

    if (tenure_cache_new(&cache, NULL) < 0)
        return 1;
    if (tenure_cache_insert(cache, "cat.jpg", 7, "a picture", 9, 2) < 0)
        return 1;
    /* The file has changed. */
    int removed = tenure_cache_remove(cache, "cat.jpg", 7);
    puts(removed == 1 ? "removed" : "was not there");
    tenure_cache_close(cache);
    return removed < 0;
}
