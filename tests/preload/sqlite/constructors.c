/* A copy of SQLite that is first used while the loader holds its lock, in a constructor and in a
 * thread that the constructor waits for, and another one that is first used meanwhile. The
 * arguments are "1" if SQLite is to be told, and the two libraries. */

#include "copies.h"

static void *load(void *library)
{
    return open_library(library);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    void *loaded;
    CHECK_IS(count, 4);
    int wanted = atoi(arguments[1]);
    alarm(20);
    void *one = open_library(arguments[2]);
    CHECK_IS(pthread_create(&thread, NULL, load, arguments[3]), 0);
    usleep(50000);
    CHECK_IS(call(one, "one_use"), 0);
    CHECK_IS(pthread_join(thread, &loaded), 0);
    CHECK_IS(call(one, "one_initialized"), 1);
    CHECK_IS(call(one, "one_configured"), wanted);
    CHECK_IS(call(loaded, "two_initialized"), 2);
    CHECK_IS(call(loaded, "two_configured"), wanted);
    return 0;
}
