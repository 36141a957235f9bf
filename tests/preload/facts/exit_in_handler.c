/* Ends by _exit in a signal handler that has interrupted the heap, as far as chance has it:
 * after so many microseconds. */
#include "../../basics.h"

#include <signal.h>
#include <sys/time.h>

static void end(int number)
{
    (void)number;
    _exit(7);
}

int main(int count, char **arguments)
{
    CHECK_IS(count, 2);
    /* Enough for a decay thread. */
    char *live = malloc(16 << 20);
    CHECK(live != NULL);
    memset(live, 1, 16 << 20);
    CHECK(signal(SIGALRM, end) != SIG_ERR);
    struct itimerval timer = {.it_value = {.tv_usec = atoi(arguments[1])}};
    CHECK_IS(setitimer(ITIMER_REAL, &timer, NULL), 0);
    for (;;) {
        void *blocks[64];
        for (size_t index = 0; index < 64; index++) {
            blocks[index] = malloc(40000 + index * 5000);
            CHECK(blocks[index] != NULL);
        }
        for (size_t index = 0; index < 64; index++)
            free(blocks[index]);
    }
}
