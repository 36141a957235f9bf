#include <stdio.h>
#include <tenure.h>
#include <unistd.h>

int main(void)
{
    struct tenure_cache_options options = {.size = sizeof(options), .max_bytes = 64 << 20};
    struct tenure_cache *thumbnails;
    struct tenure_cache_value cat;
    char name[64];

    /* Processes that are to share it use the same name. */
    snprintf(name, sizeof(name), "thumbnails.%d", (int)getpid());
    if (tenure_cache_open_shared(&thumbnails, name, &options) < 0)
        return 1;
    if (tenure_cache_insert(thumbnails, "cat", 3, "a picture", 9, 2) < 0)
        return 1;
    if (tenure_cache_get(thumbnails, "cat", 3, &cat) == 1) {
        printf("%.*s\n", (int)cat.len, (const char *)cat.data);
        tenure_cache_unpin(&cat);
    }
    tenure_cache_close(thumbnails);

    /* The file stays until "tenure cache drop", or: */
    snprintf(name, sizeof(name), "/dev/shm/tenure.thumbnails.%d", (int)getpid());
    return unlink(name);
}
