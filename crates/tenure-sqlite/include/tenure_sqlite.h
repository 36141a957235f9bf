/* tenure_sqlite.h: a page cache for SQLite that the kernel may reclaim when it needs memory.
 * Link with -ltenure_sqlite. See tenure_sqlite3_install(3) and docs/SQLITE.md. */
#ifndef TENURE_SQLITE_H
#define TENURE_SQLITE_H

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3_pcache_methods2;

/* Has the process's dynamic libsqlite3 use the page cache. Call it before sqlite3_initialize
 * and before the first connection, while no other thread uses SQLite. Returns 0 (SQLITE_OK),
 * or SQLITE_MISUSE or SQLITE_ERROR after a line on standard error; SQLite then goes on as
 * before. */
int tenure_sqlite3_install(void);

/* The same for the SQLite whose sqlite3_config this is, as one that is linked statically. */
int tenure_sqlite3_install_with(int (*config)(int, ...));

/* Returns the methods, for sqlite3_config(SQLITE_CONFIG_PCACHE2, ...). Never NULL. */
const struct sqlite3_pcache_methods2 *tenure_sqlite3_methods(void);

#ifdef __cplusplus
}
#endif

#endif
