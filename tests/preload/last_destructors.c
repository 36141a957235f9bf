/* Threads that allocate nothing end while another one requests blocks of 256 KiB. The last
 * destructors of each free such a block. */
#include "../basics.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

enum { ROUNDS = 40, THREADS = 4 };

static const size_t bytes = (size_t)256 << 10;
static pthread_key_t key;
static __thread int round_number;
static atomic_int is_over;

static void free_last(void *block)
{
    if (++round_number < PTHREAD_DESTRUCTOR_ITERATIONS)
        CHECK_IS(pthread_setspecific(key, block), 0);
    else
        free(block);
}

static void *ends(void *block)
{
    CHECK_IS(pthread_setspecific(key, block), 0);
    return NULL;
}

static void *requests(void *nothing)
{
    while (!atomic_load(&is_over)) {
        char *volatile block = malloc(bytes);
        CHECK(block != NULL);
        *block = 1;
        free(block);
    }
    return nothing;
}

int main(void)
{
    CHECK_IS(pthread_key_create(&key, free_last), 0);
    pthread_t other;
    CHECK_IS(pthread_create(&other, NULL, requests, NULL), 0);
    /* More stacks than the C library keeps, so that those of ended threads are unmapped. */
    pthread_attr_t attributes;
    CHECK_IS(pthread_attr_init(&attributes), 0);
    CHECK_IS(pthread_attr_setstacksize(&attributes, (size_t)64 << 20), 0);
    for (int count = 0; count < ROUNDS; count++) {
        pthread_t threads[THREADS];
        /* Large enough that a heap frees in the background. */
        char *large = malloc((size_t)16 << 20);
        CHECK(large != NULL);
        *(char *volatile)large = 1;
        free(large);
        for (int each = 0; each < THREADS; each++)
            CHECK_IS(pthread_create(&threads[each], &attributes, ends, malloc(bytes)), 0);
        for (int each = 0; each < THREADS; each++)
            CHECK_IS(pthread_join(threads[each], NULL), 0);
        const struct timespec pause = {.tv_nsec = 10000000};
        CHECK_IS(nanosleep(&pause, NULL), 0);
    }
    atomic_store(&is_over, 1);
    CHECK_IS(pthread_join(other, NULL), 0);
    return 0;
}
