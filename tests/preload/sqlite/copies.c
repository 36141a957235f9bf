/* Two copies of SQLite in one process, each in a library that is loaded for itself: each is
 * initialized by its own function, and told of the page cache once, before that, if the first
 * argument is "1". The others are the two libraries. */

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*function)(void);

static function find(void *library, const char *name)
{
    function found;
    void *address = dlsym(library, name);
    memcpy(&found, &address, sizeof found);
    return found;
}

int main(int count, char **arguments)
{
    static const char *const names[2][4] = {
        {"one_use", "one_initialized", "one_configured", "sqlite3_initialize"},
        {"two_use", "two_initialized", "two_configured", "sqlite3_initialize"},
    };
    if (count != 4)
        return 2;
    int wanted = strcmp(arguments[1], "1") == 0;
    void *libraries[2];
    for (int i = 0; i < 2; i++) {
        libraries[i] = dlopen(arguments[2 + i], RTLD_NOW | RTLD_LOCAL);
        if (libraries[i] == NULL) {
            printf("%s\n", dlerror());
            return 1;
        }
    }
    for (int i = 0; i < 2; i++) {
        function functions[4];
        for (int j = 0; j < 4; j++) {
            functions[j] = find(libraries[i], names[i][j]);
            if (functions[j] == NULL)
                return 3;
        }
        if (functions[0]() != 0 || functions[0]() != 0)
            return 4;
        /* Called by its address, without this program's own table of symbols. */
        if (functions[3]() != 0)
            return 5;
        if (functions[1]() != 3 || functions[2]() != wanted) {
            printf("copy %d: initialized %d times, configured %d\n", i, functions[1](),
                   functions[2]());
            return 6;
        }
    }
    return 0;
}
