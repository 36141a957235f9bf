/* The library is loaded and closed repeatedly, while its threads work and the program
 * forks: it stays loaded, because it contains the code of its threads and fork handlers.
 * The program does not link it; TENURE_LIBRARY is its path. */
#include "check.h"

#include <dlfcn.h>
#include <signal.h>

typedef int mark_fn(void *, size_t);
typedef int unmark_fn(void *, size_t, struct tenure_range *, size_t, size_t *);

static int read_volatile_byte(void *memory)
{
    /* A fork handler of the library's has protected the volatile range again: the child
     * reads the old bytes or gets SIGBUS, but never reads zeros. */
    return *(char *)memory == 7 ? 0 : 1;
}

int main(void)
{
    const char *path = getenv("TENURE_LIBRARY");
    size_t len = (size_t)8 << 20;

    if (path == NULL)
        skip("TENURE_LIBRARY does not say where the library is");
    for (int i = 0; i < 20; i++) {
        void *library = dlopen(path, i % 2 ? RTLD_NOW : RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        mark_fn *mark = (mark_fn *)(uintptr_t)dlsym(library, "tenure_mvolatile");
        mark_fn *unmap = (mark_fn *)(uintptr_t)dlsym(library, "tenure_munmap");
        unmark_fn *unmark =
            (unmark_fn *)(uintptr_t)dlsym(library, "tenure_mnovolatile");
        CHECK(mark != NULL && unmap != NULL && unmark != NULL);
        char *memory = map(len), *other = map(len);
        memset(memory, 7, len);
        memset(other, 7, len);
        CHECK_IS(mark(memory, len), 0);
        CHECK_IS(unmap(other, len), 0); /* a worker thread frees it */
        CHECK_IS(dlclose(library), 0);
        usleep(i < 4 ? 150000 : 1000); /* the offer thread offers it */
        int status = in_child(read_volatile_byte, memory);
        CHECK(status == 0 || status == 128 + SIGBUS);
        /* The kernel may have purged some pages. */
        if (unmark(memory, len, NULL, 0, NULL) == 0)
            CHECK_IS(memory[len - 1], 7);
        CHECK_IS(unmap(memory, len), 0);
    }
    return 0;
}
