/* A signal handler interrupts malloc, free, mmap and munmap at any point: it writes,
 * forks, unmaps, and at last ends the process. */
#include "../basics.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void handler(int number)
{
    int before = errno;
    (void)number;
    signals++;
    CHECK_IS(write(STDOUT_FILENO, "", 0), 0);
    if (signals % 50 == 0) {
        /* No standard allows this in the middle of munmap(), but programs do it. */
        void *memory = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED)
            CHECK_IS(munmap(memory, 8 << 20), 0);
    }
    if (signals % 100 == 0) {
        int status;
        /* A raw clone(), because fork() waits for malloc's locks if there are threads. */
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0)
            _exit(3);
        CHECK(child > 0);
        while (waitpid(child, &status, 0) < 0)
            CHECK_IS(errno, EINTR);
        CHECK_IS(WEXITSTATUS(status), 3);
    }
    if (signals == 1000)
        _exit(0);
    errno = before;
}

int main(void)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 300 }, { 0, 300 } };
    unsigned char *kept[16] = { 0 };

    alarm(60);
    CHECK_IS(sigaction(SIGALRM, &action, NULL), 0);
    alarm(0);
    CHECK_IS(setitimer(ITIMER_REAL, &often, NULL), 0);
    for (unsigned round = 0; round < 10000000; round++) {
        unsigned at = round % 16;
        free(kept[at]);
        size_t len = (round * 7919) % (2 << 20) + 1;
        kept[at] = malloc(len);
        CHECK(kept[at] != NULL);
        kept[at][0] = kept[at][len - 1] = 1;
        if (at == 0) {
            char *memory = mmap(NULL, 6 << 20, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(memory != MAP_FAILED);
            memory[5 << 20] = 1;
            CHECK_IS(madvise(memory, 6 << 20, MADV_DONTNEED), 0);
            CHECK_IS(memory[5 << 20], 0);
            CHECK_IS(munmap(memory, 6 << 20), 0);
        }
    }
    return 1; /* the signals did not arrive */
}
