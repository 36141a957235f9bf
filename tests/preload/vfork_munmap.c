/* A munmap in a child of vfork, the first of all: the parent's memory is still freed. */
#include "../basics.h"

#define MIB ((size_t)1 << 20)

static long resident_mib(void)
{
    long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE) / (long)MIB;
}

static void *mapped(size_t len)
{
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 5, len);
    return memory;
}

int main(void)
{
    void *memory = mapped(16 * MIB);
    pid_t child = vfork();
    if (child == 0) {
        munmap(memory, 16 * MIB);
        _exit(0);
    }
    int status;
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
    for (int round = 0; round < 10; round++)
        CHECK_IS(munmap(mapped(64 * MIB), 64 * MIB), 0);
    /* Within a minute, however slow the machine. */
    for (int tenth = 0; tenth < 600 && resident_mib() > 128; tenth++)
        usleep(100000);
    CHECK(resident_mib() <= 128);
    return 0;
}
