/* errno is unchanged by success and by failure, and a thread is cancelled only outside of
 * tenure. */
#include "check.h"

#include <pthread.h>

static void *call_tenure_when_cancelled(void *data)
{
    char *memory = data;
    /* The thread is cancelled already, and runs until the next cancellation point outside of
     * tenure. */
    pthread_cancel(pthread_self());
    CHECK_IS(tenure_populate(memory, 64 * page(), TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_mvolatile(memory, 64 * page()), 0);
    CHECK_IS(tenure_mlock(memory, page(), TENURE_LOCK_NOW | 0x80), -EINVAL);
    memory[0] = 1;
    pthread_testcancel();
    memory[0] = 2;
    return NULL;
}

int main(void)
{
    size_t len = (size_t)16 << 20;
    char *memory = map(len);
    pthread_t thread;
    void *result;

    errno = 77;
    CHECK_IS(tenure_populate(memory, len, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_mvolatile_with(memory, len, 0, TENURE_VOLATILE_OFFER_NOW), 0);
    CHECK_IS(tenure_mnovolatile(memory, len, NULL, 0, NULL), 0);
    CHECK_IS(tenure_populate(NULL, page(), TENURE_POPULATE_WRITE), -ENOMEM);
    CHECK_IS(tenure_mlock(NULL, page(), TENURE_LOCK_NOW), -ENOMEM);
    CHECK_IS(tenure_discard(memory, len), 0);
    CHECK_IS(tenure_munmap(memory + len / 2, len / 2), 0);
    CHECK_IS(tenure_drain(-1), 0);
    CHECK_IS(errno, 77);

    CHECK_IS(pthread_create(&thread, NULL, call_tenure_when_cancelled, memory), 0);
    CHECK_IS(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_IS(memory[0], 1);
    /* The cancelled thread has left no lock of tenure's held. */
    CHECK_IS(tenure_mnovolatile(memory, 64 * page(), NULL, 0, NULL), 0);
    return 0;
}
