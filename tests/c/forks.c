/* Forks while other threads use every verb: each child can use all of them, and has its
 * own copy of the volatile range. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

#define FORKS 60

static atomic_int over;
static char *shared_copy;

static void use_every_verb(size_t len)
{
    char *memory = map(len);
    struct tenure_stats stats;
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), 0);
    memset(memory, 3, len);
    CHECK_IS(tenure_mvolatile_with(memory, len, 1, TENURE_VOLATILE_OFFER_NOW), 0);
    CHECK(tenure_mnovolatile(memory, len, NULL, 0, NULL) >= 0);
    CHECK_IS(tenure_lazy_free(memory, len), 0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(tenure_munlock(memory, page(), TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(tenure_discard(memory, len), 0);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static void *use_every_verb_until_over(void *data)
{
    (void)data;
    while (!over)
        use_every_verb((size_t)5 << 20);
    return NULL;
}

/* The kernel may have purged some pages; all others are as they were. */
static void unmark_and_check(void)
{
    size_t len = 16 * page(), count;
    struct tenure_range purged[16];
    int answer = tenure_mnovolatile(shared_copy, len, purged, 16, &count);
    CHECK(answer == 0 || answer == 1);
    CHECK_IS(answer, count > 0);
    for (size_t i = 0; i < count; i++)
        memset(purged[i].addr, 5, purged[i].len);
    for (size_t at = 0; at < len; at++)
        CHECK_IS(shared_copy[at], 5);
}

static int unmark_and_use_every_verb(void *data)
{
    (void)data;
    alarm(60); /* ends the child if it waits for a lock that no thread will release */
    unmark_and_check();
    use_every_verb((size_t)5 << 20);
    CHECK_IS(tenure_drain(-1), 0);
    return 0;
}

/* Whether the library was prepared for forks before the first call. */
static int is_prepared_before_first_call(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        found |= strstr(line, "tenure-stats") != NULL;
    fclose(maps);
    return found;
}

int main(void)
{
    pthread_t threads[2];
    size_t len = 16 * page();

    CHECK(is_prepared_before_first_call());
    shared_copy = map(len);
    memset(shared_copy, 5, len);
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, use_every_verb_until_over, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        CHECK_IS(tenure_mvolatile(shared_copy, len), 0);
        CHECK_IS(in_child(unmark_and_use_every_verb, NULL), 0);
        unmark_and_check();
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    return 0;
}
