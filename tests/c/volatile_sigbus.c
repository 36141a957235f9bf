/* A purged page that is touched is SIGBUS with its exact address, read and written; in a
 * system call it is EFAULT (the SIGBUS part of the kernel's userfaultfd tests). */
#include "check.h"

#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static void *volatile faulted;
static volatile int how;
/* Where what is read goes: valgrind leaves out a read whose result nobody uses. */
static volatile char read_byte;

static void caught(int signal, siginfo_t *info, void *context)
{
    (void)context;
    faulted = info->si_addr;
    how = signal;
    siglongjmp(back, 1);
}

/* The signal that touching the byte brings, or 0. */
static int touch(volatile char *byte, int writes)
{
    how = 0;
    faulted = NULL;
    if (sigsetjmp(back, 1) == 0) {
        if (writes)
            *byte = 1;
        else
            read_byte = *byte;
    }
    return how;
}

int main(void)
{
    size_t len = 16 * page();
    char *memory = map(len), *lost = memory + 3 * page();
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
    CHECK_IS(tenure_purge(lost, page()), 0);
    /* Where the kernel has no userfaultfd for us, it is SIGSEGV. */
    int wanted = stats.kept_from_kernel_bytes == 0 ? SIGBUS : SIGSEGV;
    CHECK_IS(touch(memory, 0), 0);
    CHECK_IS(touch(lost + 11, 0), wanted);
    CHECK(faulted == lost + 11);
    CHECK_IS(touch(lost + page() - 1, 1), wanted);
    CHECK(faulted == lost + page() - 1);

    CHECK_IS(pipe(ends), 0);
    CHECK_IS(write(ends[1], lost, 1), -1);
    CHECK_IS(errno, EFAULT);
    CHECK_IS(write(ends[1], memory, 1), 1);
    CHECK_IS(read(ends[0], lost, 1), -1);
    CHECK_IS(errno, EFAULT);

    CHECK_IS(tenure_mnovolatile(memory, len, &run, 1, &count), 1);
    CHECK_IS(count, 1);
    CHECK(run.addr == lost && run.len == page());
    CHECK_IS(touch(lost, 1), 0);
    CHECK_IS(lost[1], 0);
    CHECK_IS(tenure_munmap(memory, len), 0);
    return 0;
}
