/* Reading or writing a purged page raises SIGBUS with the exact address; in a system call it
 * is EFAULT (the SIGBUS part of the kernel's userfaultfd tests). */
#include "check.h"

#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static void *volatile faulted;
static volatile int raised;
/* The byte that was read: valgrind omits a read whose result is not used. */
static volatile char read_byte;

static void caught(int signal, siginfo_t *info, void *context)
{
    (void)context;
    faulted = info->si_addr;
    raised = signal;
    siglongjmp(back, 1);
}

/* Touches the byte and returns the signal that it raises, or 0. */
static int touch(volatile char *byte, int writes)
{
    raised = 0;
    faulted = NULL;
    if (sigsetjmp(back, 1) == 0) {
        if (writes)
            *byte = 1;
        else
            read_byte = *byte;
    }
    return raised;
}

int main(void)
{
    size_t len = 16 * page();
    char *memory = map(len), *purged = memory + 3 * page();
    struct sigaction action;
    struct tenure_stats stats;
    size_t count;
    struct tenure_range run;
    int ends[2];

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO;
    CHECK_IS(sigaction(SIGBUS, &action, NULL), 0);
    CHECK_IS(sigaction(SIGSEGV, &action, NULL), 0);

    memset(memory, 7, len);
    CHECK_IS(tenure_mvolatile_with(memory, len, 2, TENURE_VOLATILE_OFFER_NOW), 0);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(tenure_purge(purged, page()), 0);
    /* Where userfaultfd is unavailable, the signal is SIGSEGV. */
    int wanted = stats.unofferable_bytes == 0 ? SIGBUS : SIGSEGV;
    CHECK_IS(touch(memory, 0), 0);
    CHECK_IS(touch(purged + 11, 0), wanted);
    CHECK(faulted == purged + 11);
    CHECK_IS(touch(purged + page() - 1, 1), wanted);
    CHECK(faulted == purged + page() - 1);

    CHECK_IS(pipe(ends), 0);
    CHECK_IS(write(ends[1], purged, 1), -1);
    CHECK_IS(errno, EFAULT);
    CHECK_IS(write(ends[1], memory, 1), 1);
    CHECK_IS(read(ends[0], purged, 1), -1);
    CHECK_IS(errno, EFAULT);

    CHECK_IS(tenure_mnovolatile(memory, len, &run, 1, &count), 1);
    CHECK_IS(count, 1);
    CHECK(run.addr == purged && run.len == page());
    CHECK_IS(touch(purged, 1), 0);
    CHECK_IS(purged[1], 0);
    CHECK_IS(tenure_munmap(memory, len), 0);
    return 0;
}
