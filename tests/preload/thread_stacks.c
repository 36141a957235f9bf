/* Threads end and are joined in a program that has allocated much and freed nothing: the C
 * library frees their stacks itself, with its lock on them held. */
#include "../basics.h"

#include <pthread.h>

enum { BLOCKS = 20, THREADS = 16 };

static pthread_barrier_t all_run;

static void *ends(void *data)
{
    pthread_barrier_wait(&all_run);
    return data;
}

int main(void)
{
    /* More stacks than the C library keeps, which is 40 MiB. */
    static const size_t stack_bytes = (size_t)8 << 20;
    static void *blocks[BLOCKS];
    pthread_attr_t attributes;
    CHECK_IS(pthread_attr_init(&attributes), 0);
    CHECK_IS(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
    for (int joined = 0; joined < 2; joined++) {
        for (int each = 0; each < BLOCKS; each++) {
            blocks[each] = malloc((size_t)1 << 20);
            CHECK(blocks[each] != NULL);
        }
        pthread_t threads[THREADS];
        CHECK_IS(pthread_barrier_init(&all_run, NULL, THREADS + 1), 0);
        for (int each = 0; each < THREADS; each++)
            CHECK_IS(pthread_create(&threads[each], &attributes, ends, NULL), 0);
        if (!joined)
            for (int each = 0; each < THREADS; each++)
                CHECK_IS(pthread_detach(threads[each]), 0);
        pthread_barrier_wait(&all_run);
        if (joined)
            for (int each = 0; each < THREADS; each++)
                CHECK_IS(pthread_join(threads[each], NULL), 0);
    }
    /* One that is started now takes the same lock. */
    CHECK_IS(pthread_barrier_init(&all_run, NULL, 1), 0);
    pthread_t last;
    CHECK_IS(pthread_create(&last, NULL, ends, NULL), 0);
    CHECK_IS(pthread_join(last, NULL), 0);
    for (int each = 0; each < BLOCKS; each++)
        free(blocks[each]);
    return 0;
}
