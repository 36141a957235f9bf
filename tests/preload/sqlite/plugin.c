/* A plugin whose constructor starts a thread that uses SQLite, and waits for it. */

#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>

static void *use(void *unused)
{
    sqlite3 *db;
    if (sqlite3_open(":memory:", &db) != SQLITE_OK ||
        sqlite3_exec(db, "create table t(a); insert into t values(1)", NULL, NULL, NULL) !=
            SQLITE_OK ||
        sqlite3_close(db) != SQLITE_OK)
        abort();
    return unused;
}

__attribute__((constructor)) static void construct(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, use, NULL) != 0 || pthread_join(thread, NULL) != 0)
        abort();
}
