/* Stands for a copy of SQLite: it counts its initializations, and the page caches that it is
 * given before the first one. -DNAME=... names the functions with which tests look at it. With
 * -DIN_CONSTRUCTOR its constructor uses it, by itself and in a thread that it waits for. */

#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

/* How long it takes to be told. */
#ifndef CONFIG_MICROS
#define CONFIG_MICROS 0
#endif

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

static int initialized, configured, misused;

int sqlite3_initialize(void)
{
    initialized++;
    return 0;
}

int sqlite3_config(int option, ...)
{
    va_list arguments;
    va_start(arguments, option);
    const int *methods = va_arg(arguments, const int *);
    va_end(arguments);
    usleep(CONFIG_MICROS);
    if (initialized) {
        misused++;
        return 21;
    }
    /* SQLITE_CONFIG_PCACHE2, and the version of the methods. */
    configured += option == 18 && methods != NULL && *methods == 1;
    return 0;
}

/* As sqlite3_open does: through the table of symbols. */
int JOIN(NAME, _use)(void)
{
    return sqlite3_initialize();
}

int JOIN(NAME, _initialized)(void)
{
    return initialized;
}

int JOIN(NAME, _configured)(void)
{
    return configured + 100 * misused;
}

#ifdef IN_CONSTRUCTOR
#include <pthread.h>

static void *use(void *unused)
{
    sqlite3_initialize();
    return unused;
}

__attribute__((constructor)) static void construct(void)
{
    pthread_t thread;
    usleep(100000);
    if (pthread_create(&thread, NULL, use, NULL) == 0)
        pthread_join(thread, NULL);
    sqlite3_initialize();
}
#endif
