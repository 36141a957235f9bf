/* The library is loaded and closed again and again, with its threads at work and forks
 * between: it stays, for its threads and its fork handlers are in it. Links nothing;
 * TENURE_LIBRARY names the file. */
#include "check.h"

#include <dlfcn.h>
#include <signal.h>

typedef int mark_fn(void *, size_t);
typedef int unmark_fn(void *, size_t, struct tenure_range *, size_t, size_t *);

static int child(void *memory)
{
    /* What is volatile has been protected anew by a handler of the library's: the old
     * bytes, or SIGBUS, never zeros. */
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
        CHECK_IS(unmap(other, len), 0); /* a thread of its frees it */
        CHECK_IS(dlclose(library), 0);
        usleep(i < 4 ? 150000 : 1000); /* the keeper offers it */
        int status = in_child(child, memory);
        CHECK(status == 0 || status == 128 + SIGBUS);
        /* The kernel may have taken some by itself. */
        if (unmark(memory, len, NULL, 0, NULL) == 0)
            CHECK_IS(memory[len - 1], 7);
        CHECK_IS(unmap(memory, len), 0);
    }
    return 0;
}
