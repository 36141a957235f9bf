/* Prints the observed effects of the options, one per line. */
#include "../../basics.h"

#include <dirent.h>

static long vm_locked_kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "VmLck: %ld", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

static void tell_helper(void)
{
    char path[64], name[64] = "none\n";
    int child = 0;
    FILE *file = fopen("/proc/thread-self/children", "r");
    if (file != NULL && fscanf(file, "%d", &child) == 1) {
        snprintf(path, sizeof(path), "/proc/%d/comm", child);
        FILE *comm = fopen(path, "r");
        CHECK(comm != NULL && fgets(name, sizeof(name), comm) != NULL);
        fclose(comm);
    }
    if (file != NULL)
        fclose(file);
    printf("helper %s", name);
}

/* Replaces a table by another, each of which begins with zeros. */
static void replace_tables(size_t len)
{
    for (int round = 0; round < 10; round++) {
        char *table = map(len);
        for (size_t at = 0; at < len; at += page())
            CHECK_IS(table[at], 0);
        memset(table, 1, len);
        CHECK_IS(munmap(table, len), 0);
    }
}

int main(int count, char **arguments)
{
    size_t len = (size_t)8 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    CHECK(memory != MAP_FAILED);
    size_t there = resident(memory, len);
    printf("mapped %zu of %zu\n", there, len / page());
    char *reserve = mmap(NULL, len, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserve != MAP_FAILED);
    printf("reserved %zu\n", resident(reserve, len));
    memset(memory, 1, len);
    int is_locked = vm_locked_kib() > 0;
    /* The kernel refuses to discard locked pages; MADV_DONTNEED_LOCKED (Linux 5.18) is 24. */
    int is_old = getenv("TENURE_WITHOUT") || syscall(SYS_madvise, reserve, page(), 24) != 0;
    int is_kept = is_locked && is_old;
    CHECK_IS(madvise(memory, len, MADV_DONTNEED), is_kept ? -1 : 0);
    CHECK_IS(memory[len - 1], is_kept);
    printf("locked %s\n", is_locked ? "yes" : "no");
    char *block = malloc(len);
    CHECK(block != NULL);
    block[0] = 1;
    printf("block %zu\n", resident((char *)((uintptr_t)block & ~(page() - 1)), len / 2));
    free(block);
    memset(reserve, 1, len);
    CHECK_IS(munmap(reserve, len), 0);
    tell_helper();
    fflush(stdout);
    if (count > 1 && strcmp(arguments[1], "_exit") == 0)
        _exit(3);
    if (count > 1 && strcmp(arguments[1], "quick_exit") == 0)
        quick_exit(3);
    if (count > 1 && strcmp(arguments[1], "close") == 0)
        fclose(stderr);
    if (count > 1 && strcmp(arguments[1], "replace") == 0)
        replace_tables(len);
    if (count > 1 && strcmp(arguments[1], "fork") == 0) {
        if (fork() == 0)
            exit(0);
        wait(NULL);
    }
    return 3;
}
