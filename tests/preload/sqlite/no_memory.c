/* SQLite where the address space (RLIMIT_AS) is used up: before the first cache, and
 * while it has pages. It answers that there is no memory, and goes on when there is some
 * again; the process is not ended. The argument is the database. */

#include <dlfcn.h>
#include <sys/resource.h>

#include "../../basics.h"

#define ROWS 20000
#define NO_MEMORY 7

static int (*open_)(const char *, void **);
static int (*exec)(void *, const char *, int (*)(void *, int, char **, char **), void *, char **);
static int (*close_)(void *);
static int (*initialize)(void);

/* The addresses of the process. Too few for each thread of tenure's to have an arena of
 * glibc's, 64 MiB, with memory that it could allocate later. */
static size_t all_bytes;

static void find(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

static void limit(size_t bytes)
{
    struct rlimit limit;
    CHECK_IS(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = bytes;
    CHECK_IS(setrlimit(RLIMIT_AS, &limit), 0);
}

/* Takes what malloc() has: the blocks are a list. */
static void **take_all(void)
{
    void **taken = NULL;
    limit(1 << 20);
    for (size_t len = 1 << 20; len >= 16; len /= 2) {
        void **block;
        while ((block = malloc(len)) != NULL) {
            *block = taken;
            taken = block;
        }
    }
    return taken;
}

static void give_back(void **taken)
{
    limit(all_bytes);
    while (taken != NULL) {
        void **next = *taken;
        free(taken);
        taken = next;
    }
}

static int add(void *sum, int count, char **values, char **names)
{
    (void)names;
    CHECK_IS(count, 1);
    *(long long *)sum += atoll(values[0]);
    return 0;
}

/* Sums what the database has; 0 without memory. */
static long long sum(void *db)
{
    long long sum = 0;
    int code = exec(db, "select sum(k) + sum(length(v)) from t where k >= 0", add, &sum, NULL);
    CHECK(code == 0 || (code == NO_MEMORY && sum == 0));
    return sum;
}

int main(int count, char **arguments)
{
    CHECK_IS(count, 2);
    void *library = dlopen("libsqlite3.so.0", RTLD_NOW);
    if (library == NULL)
        skip("there is no libsqlite3.so.0");
    find(library, "sqlite3_open", &open_);
    find(library, "sqlite3_exec", &exec);
    find(library, "sqlite3_close", &close_);
    find(library, "sqlite3_initialize", &initialize);

    size_t pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%zu", &pages) == 1);
    fclose(file);
    all_bytes = pages * page() + (48 << 20);
    limit(all_bytes);
    CHECK_IS(initialize(), 0);

    void *db = NULL, *other = NULL;
    void **taken = take_all();
    CHECK(open_(arguments[1], &db) != 0);
    give_back(taken);
    close_(db);

    CHECK_IS(open_(arguments[1], &db), 0);
    CHECK_IS(exec(db,
                  "pragma synchronous = off; create table t(k integer primary key, v);"
                  "with recursive n(i) as (select 1 union all select i + 1 from n limit 20000)"
                  "insert into t select i, zeroblob(1000) from n",
                  NULL, NULL, NULL),
             0);
    long long wanted = (long long)ROWS * (ROWS + 1) / 2 + 1000LL * ROWS;
    CHECK_IS(sum(db), wanted);
    for (int round = 0; round < 5; round++) {
        taken = take_all();
        for (int i = 0; i < 20; i++) {
            long long got = sum(db);
            CHECK(got == 0 || got == wanted);
            exec(db, "pragma shrink_memory", NULL, NULL, NULL);
            if (open_(arguments[1], &other) == 0)
                sum(other);
            close_(other);
            usleep(10000);
        }
        give_back(taken);
        CHECK_IS(sum(db), wanted);
    }
    CHECK_IS(close_(db), 0);
    return 0;
}
