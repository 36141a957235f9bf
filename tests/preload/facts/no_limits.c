/* Allocates where a filter of system calls refuses to tell limits, as systemd's ~@resources does,
 * and what memory the machine has. The first run sets the filter and starts the program again, with
 * the library. */
#include "../../basics.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static void refuse_limits(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_getrlimit
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrlimit, 2, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sysinfo, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(steps) / sizeof(*steps), steps};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        skip("no filter of system calls");
}

int main(int count, char **arguments)
{
    if (count > 1) {
        refuse_limits();
        CHECK(setenv("LD_PRELOAD", arguments[1], 1) == 0);
        execl(arguments[0], arguments[0], NULL);
        return 1;
    }
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == -1);
    CHECK_IS(errno, EPERM);
    struct sysinfo info;
    CHECK(sysinfo(&info) == -1);
    size_t size = 1 << 20;
    char *block = memset(malloc(size), 7, size);
    for (; size < 64 << 20; size *= 2) {
        block = realloc(block, 2 * size);
        CHECK(block != NULL);
        CHECK_IS(block[size - 1], 7);
        memset(block, 7, 2 * size);
    }
    free(block);
    return 0;
}
