/* Every way to end a process: the status is the one that was given, output is complete,
 * and exit functions run. */
#include "../basics.h"

#include <pthread.h>
#include <signal.h>

static void use(void)
{
    void *block = malloc(3 << 20);
    CHECK(block != NULL);
    memset(block, 1, 3 << 20);
    free(block);
    CHECK_IS(munmap(fflush(stdout) == 0 ? mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                        : NULL,
                    8 << 20),
             0);
}

static void at_end(void)
{
    use();
}

static void *forever(void *data)
{
    (void)data;
    for (;;)
        use();
    return NULL;
}

static int by_exit(void *data)
{
    (void)data;
    CHECK_IS(atexit(at_end), 0);
    exit(3);
}

static int by_exit_at_once(void *data)
{
    (void)data;
    _exit(3);
}

static int by_exit_at_once_too(void *data)
{
    (void)data;
    _Exit(3);
}

static int by_quick_exit(void *data)
{
    (void)data;
    CHECK_IS(at_quick_exit(at_end), 0);
    quick_exit(3);
}

static int by_signal(void *data)
{
    (void)data;
    signal(SIGABRT, SIG_DFL);
    abort();
}

static int by_last_thread(void *data)
{
    (void)data;
    CHECK_IS(atexit(at_end), 0);
    pthread_exit(NULL);
}

static int with_threads(int (*end)(void *))
{
    pthread_t thread;
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_create(&thread, NULL, forever, NULL), 0);
    usleep(2000);
    return end(NULL);
}

static int exit_with_threads(void *data)
{
    (void)data;
    return with_threads(by_exit);
}

static int at_once_with_threads(void *data)
{
    (void)data;
    return with_threads(by_exit_at_once);
}

int main(void)
{
    alarm(60);
    for (int round = 0; round < 5; round++) {
        CHECK_IS(in_child(by_exit, NULL), 3);
        CHECK_IS(in_child(by_exit_at_once, NULL), 3);
        CHECK_IS(in_child(by_exit_at_once_too, NULL), 3);
        CHECK_IS(in_child(by_quick_exit, NULL), 3);
        CHECK_IS(in_child(by_signal, NULL), 128 + SIGABRT);
        CHECK_IS(in_child(by_last_thread, NULL), 0);
        CHECK_IS(in_child(exit_with_threads, NULL), 3);
        CHECK_IS(in_child(at_once_with_threads, NULL), 3);
    }
    return 0;
}
