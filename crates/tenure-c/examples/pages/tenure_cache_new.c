#include <stdio.h>
#include <tenure.h>

int main(void)
{
    struct tenure_cache_options options = {.size = sizeof(options), .max_bytes = 64 << 20};
    struct tenure_cache *thumbnails;

    if (tenure_cache_new(&thumbnails, &options) < 0)
        return 1;
    if (tenure_cache_insert(thumbnails, "cat", 3, "a picture", 9, 2) < 0)
        return 1;
    puts("a cache of 64 MiB at most");
    tenure_cache_close(thumbnails);
    return 0;
}
