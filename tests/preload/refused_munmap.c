/* munmap and mremap that the kernel refuses change nothing. */
#include "../basics.h"

#define MIB ((size_t)1 << 20)

static unsigned char *mapped(size_t len)
{
    unsigned char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 5, len);
    return memory;
}

static int is_filled(const unsigned char *memory, size_t len)
{
    for (size_t at = 0; at < len; at += 4096)
        if (memory[at] != 5)
            return 0;
    return 1;
}

static void check_refused(unsigned char *memory, size_t len, size_t refused, int error)
{
    errno = 0;
    CHECK_IS(munmap(memory, refused), -1);
    CHECK_IS(errno, error);
    errno = 0;
    CHECK(mremap(memory, refused, MIB, 0) == MAP_FAILED);
    CHECK_IS(errno, error);
    CHECK(is_filled(memory, len));
    pid_t child = fork();
    if (child == 0)
        _exit(!is_filled(memory, len));
    int status;
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
}

int main(void)
{
    size_t len = 9 * MIB;
    unsigned char *memory = mapped(len);
    check_refused(memory, len, (size_t)1 << 62, EINVAL);
#ifdef SYS_mseal
    long mseal = SYS_mseal;
#else
    long mseal = 462;
#endif
    if (syscall(mseal, memory + 8 * MIB, MIB, 0) == 0) {
        check_refused(memory, len, len, EPERM);
        unsigned char *whole = mapped(len);
        CHECK_IS(syscall(mseal, whole, len, 0), 0);
        check_refused(whole, len, len, EPERM);
    } else {
        CHECK_IS(errno, ENOSYS);
    }
    return 0;
}
