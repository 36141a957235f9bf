/* A program whose main() calls pthread_exit() ends when its last thread does, as without
 * tenure: the exit handlers run, and the status is 0. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#define LEN ((size_t)1 << 20)
#define PATIENCE_MS 60000

static int at_exit[2];
static char *memory;
static int is_volatile_at_end;

static void tell(void)
{
    CHECK_IS(write(at_exit[1], "e", 1), 1);
}

/* Each asks what is mapped, which the first thread's files in /proc no longer tell. */
static void use_other_verbs(void)
{
    char *other = map(LEN);
    CHECK_IS(tenure_populate(other, LEN, TENURE_POPULATE_WRITE), 0);
    CHECK_IS(tenure_lazy_free(other, LEN), 0);
    CHECK_IS(tenure_munmap(other, LEN), 0);
}

static void *last_thread(void *unused)
{
    (void)unused;
    usleep(300000);
    use_other_verbs();
    if (!is_volatile_at_end)
        CHECK_IS(tenure_mnovolatile(memory, LEN, NULL, 0, NULL), 0);
    return NULL;
}

static void run_program(void)
{
    pthread_t thread;
    atexit(tell);
    memory = map(LEN);
    memset(memory, 7, LEN);
    CHECK_IS(tenure_mvolatile_with(memory, LEN, 0, TENURE_VOLATILE_OFFER_NOW), 0);
    CHECK_IS(pthread_create(&thread, NULL, last_thread, NULL), 0);
    pthread_exit(NULL);
}

static void program_ends_after_its_last_thread(void)
{
    struct pollfd end = {.events = POLLIN};
    char byte = 0;
    int status = 0;
    CHECK_IS(pipe(at_exit), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        run_program();
    end.fd = at_exit[0];
    if (poll(&end, 1, PATIENCE_MS) != 1) {
        kill(pid, SIGKILL);
        CHECK(!"the program ends");
    }
    CHECK_IS(read(at_exit[0], &byte, 1), 1);
    CHECK_IS(byte, 'e');
    CHECK_IS(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_IS(close(at_exit[0]) + close(at_exit[1]), 0);
}

int main(void)
{
    for (is_volatile_at_end = 0; is_volatile_at_end < 2; is_volatile_at_end++)
        program_ends_after_its_last_thread();
    return 0;
}
