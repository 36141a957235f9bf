/* Threads that use SQLite under a mutex of the program's, and forks whose handlers take that
 * mutex: a forking thread waits for a thread that uses SQLite. The argument is the database. */

#include <pthread.h>
#include <sqlite3.h>

#include "../../basics.h"

#define FORKS 50

static const char *database;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_over;

static void lock(void)
{
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static void *use(void *unused)
{
    while (!is_over) {
        sqlite3 *db;
        lock();
        CHECK_IS(sqlite3_open(database, &db), SQLITE_OK);
        CHECK_IS(sqlite3_exec(db, "select sum(length(v)) from t", NULL, NULL, NULL), SQLITE_OK);
        CHECK_IS(sqlite3_close(db), SQLITE_OK);
        unlock();
    }
    return unused;
}

int main(int count, char **arguments)
{
    CHECK_IS(count, 2);
    database = arguments[1];
    CHECK_IS(pthread_atfork(lock, unlock, unlock), 0);
    sqlite3 *db;
    CHECK_IS(sqlite3_open(database, &db), SQLITE_OK);
    CHECK_IS(sqlite3_exec(db,
                          "create table t(k integer primary key, v);"
                          "with recursive n(i) as (select 1 union all select i + 1 from n limit 200)"
                          "insert into t select i, zeroblob(1000) from n",
                          NULL, NULL, NULL),
             SQLITE_OK);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, use, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(0);
        CHECK_IS(waitpid(child, &status, 0), child);
        CHECK_IS(status, 0);
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    CHECK_IS(sqlite3_close(db), SQLITE_OK);
    return 0;
}
