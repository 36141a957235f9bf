/* A fork while SQLite is told of the page cache: the child uses SQLite as well. The arguments are
 * "1" if SQLite is to be told, and the library, which takes a while for that. */

#include "copies.h"

static void *use(void *library)
{
    CHECK_IS(call(library, "one_use"), 0);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    int status;
    CHECK_IS(count, 3);
    void *library = open_library(arguments[2]);
    CHECK_IS(pthread_create(&thread, NULL, use, library), 0);
    usleep(100000);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(5);
        use(library);
        _exit(call(library, "one_configured") != atoi(arguments[1]));
    }
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
    CHECK_IS(pthread_join(thread, NULL), 0);
    return 0;
}
