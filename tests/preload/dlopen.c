/* A library that allocates when it is loaded and closed, again and again; the program
 * frees its last block. */
#include "../basics.h"

#include <dlfcn.h>

int main(void)
{
    const char *path = getenv("GUEST_LIBRARY");
    if (path == NULL)
        skip("GUEST_LIBRARY does not say where the library is");
    for (int round = 0; round < 50; round++) {
        void *library = dlopen(path, round % 2 ? RTLD_NOW : RTLD_LAZY);
        if (library == NULL)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        void *(*large)(void) = (void *(*)(void))(uintptr_t)dlsym(library, "guest_large");
        CHECK(large != NULL);
        unsigned char *block = large();
        CHECK(block != NULL);
        CHECK(dlsym(library, "guest_unknown") == NULL);
        CHECK(dlerror() != NULL);
        CHECK_IS(dlclose(library), 0);
        CHECK_IS(block[999999], 4);
        free(block);
    }
    return 0;
}
