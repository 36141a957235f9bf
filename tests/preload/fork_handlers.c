/* Forks while other threads use memory and fork handlers do: handlers of this program, and
 * those of the guest library, which may be registered before tenure's. */
#include "../basics.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "handlers.h"

#define FORKS 60
#define MAX_SECONDS 120

static atomic_int over;
static int *guests_are_on, *guests_handled;

static void *busy(void *data)
{
    while (!over)
        use_memory();
    return data;
}

static void turn(int on)
{
    handlers_are_on = on;
    handled = 0;
    if (guests_are_on) {
        *guests_are_on = on;
        *guests_handled = 0;
    }
}

static int is_handled(void)
{
    return handled == 2 && (!guests_handled || *guests_handled == 2);
}

static int child(void *data)
{
    int is_right = is_handled();
    turn(0);
    use_memory();
    return data != NULL || !is_right;
}

static int run(void *data)
{
    pthread_t threads[2];

    register_handlers();
    guests_are_on = dlsym(RTLD_DEFAULT, "guest_handlers_are_on");
    guests_handled = dlsym(RTLD_DEFAULT, "guest_handled");
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, busy, NULL), 0);
    for (int round = 0; round < FORKS; round++) {
        turn(1);
        CHECK_IS(in_child(child, data), 0);
        CHECK(is_handled());
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    return 0;
}

/* Prints where each process of a group waits. */
static void print_stacks(pid_t group)
{
    char command[200];
    snprintf(command, sizeof(command),
             "for p in $(ps -eo pgid=,pid= | sed -n 's/^ *%d //p'); do "
             "grep -H . /proc/$p/task/*/wchan; gdb -batch -p $p -ex 'thread apply all "
             "bt 20'; done >&2", (int)group);
    if (system(command) != 0)
        fprintf(stderr, "without a debugger there are no stacks\n");
}

/* The first process only watches: one that hangs may have all signals blocked. */
int main(void)
{
    int status;
    pid_t worker = fork();
    CHECK(worker >= 0);
    if (worker == 0) {
        setpgid(0, 0);
        exit(run(NULL));
    }
    for (int i = 0; i < MAX_SECONDS * 50; i++) {
        pid_t ended = waitpid(worker, &status, WNOHANG);
        CHECK(ended >= 0);
        if (ended == worker) {
            kill(-worker, SIGKILL);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    fprintf(stderr, "the forking process hangs\n");
    unsetenv("LD_PRELOAD");
    print_stacks(worker);
    kill(-worker, SIGKILL);
    return 1;
}
