/* Calls of functions of libraries that are loaded while a test runs. */

#include <dlfcn.h>

#include <pthread.h>

#include "../../basics.h"

static inline void *open_library(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        printf("%s\n", dlerror());
    CHECK(library != NULL);
    return library;
}

static inline int call(void *library, const char *name)
{
    int (*function)(void);
    void *address = dlsym(library, name);
    CHECK(address != NULL);
    memcpy(&function, &address, sizeof function);
    return function();
}
