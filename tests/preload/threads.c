/* Threads end with blocks that destructors free, and free blocks of other threads, while
 * yet others are cancelled in the middle of a call. */
#include "../basics.h"

#include <pthread.h>

static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handed[64];

static void destroy(void *block)
{
    /* Allocates once more, at the very end of the thread. */
    void *more = malloc(300000);
    CHECK(more != NULL);
    memset(more, 1, 300000);
    free(block);
    free(more);
}

static void *ends(void *data)
{
    size_t number = (size_t)(uintptr_t)data;
    unsigned char *block = malloc(200000 + number * 5000);
    CHECK(block != NULL);
    memset(block, 2, 200000);
    CHECK_IS(pthread_setspecific(key, block), 0);
    void *mine = malloc(400000 + number);
    memset(mine, (int)number, 400000);
    CHECK_IS(pthread_mutex_lock(&lock), 0);
    void *others = handed[number % 64];
    handed[number % 64] = mine;
    CHECK_IS(pthread_mutex_unlock(&lock), 0);
    free(others);
    return NULL;
}

static void unlock(void *data)
{
    (void)data;
    free(malloc(500000));
}

static void *cancelled(void *data)
{
    (void)data;
    pthread_cleanup_push(unlock, NULL);
    for (;;) {
        char *memory = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        memory[0] = 1;
        CHECK_IS(munmap(memory, 5 << 20), 0);
        free(malloc(300000));
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    alarm(120);
    CHECK_IS(pthread_key_create(&key, destroy), 0);
    for (size_t round = 0; round < 40; round++) {
        pthread_t threads[9];
        for (size_t i = 0; i < 8; i++)
            CHECK_IS(pthread_create(&threads[i], NULL, ends,
                                    (void *)(uintptr_t)(round * 8 + i)),
                     0);
        CHECK_IS(pthread_create(&threads[8], NULL, cancelled, NULL), 0);
        usleep(500);
        CHECK_IS(pthread_cancel(threads[8]), 0);
        for (size_t i = 0; i < 9; i++)
            CHECK_IS(pthread_join(threads[i], NULL), 0);
    }
    for (size_t i = 0; i < 64; i++)
        free(handed[i]);
    return 0;
}
