/* A library behind tenure's sees the calls of mmap and its relatives that tenure does not
 * serve, with their arguments, answers and errors. */
#include "../../basics.h"

#include <dlfcn.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static long (*counted)(const char *);

/* Makes a call that the library behind must see once. */
#define SEEN(name, call)                                                       \
    do {                                                                       \
        long before_ = counted(name);                                          \
        call;                                                                  \
        CHECK_IS(counted(name) - before_, 1);                                  \
    } while (0)

static void refused(void)
{
    char *memory = NULL;
    errno = 0;
    SEEN("mmap", memory = mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(memory == MAP_FAILED);
    CHECK_IS(errno, EINVAL);
    char *odd = (char *)(uintptr_t)(page() + 1);
    errno = 0;
    SEEN("munmap", CHECK_IS(munmap(odd, 8 * MIB), -1));
    CHECK_IS(errno, EINVAL);
    errno = 0;
    SEEN("madvise", CHECK_IS(madvise(odd, 8 * MIB, MADV_DONTNEED), -1));
    CHECK_IS(errno, EINVAL);
    errno = 0;
    SEEN("mremap", CHECK(mremap(odd, 16 * MIB, MIB, 0) == MAP_FAILED));
    CHECK_IS(errno, EINVAL);
}

int main(void)
{
    *(void **)&counted = dlsym(RTLD_DEFAULT, "counted");
    CHECK(counted != NULL);
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *memory = NULL, *other = NULL;

    errno = 77;
    SEEN("mmap", memory = mmap(NULL, 256 * KIB, prot, flags, -1, 0));
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, 256 * KIB);
    SEEN("madvise", CHECK_IS(madvise(memory, 64 * KIB, MADV_DONTNEED), 0));
    CHECK(memory[0] == 0 && memory[64 * KIB] == 1);
    SEEN("mremap", CHECK(mremap(memory, 256 * KIB, 128 * KIB, 0) == memory));
    SEEN("mmap64", other = mmap64(NULL, 256 * KIB, prot, flags, -1, 0));
    CHECK(other != MAP_FAILED);
    SEEN("mremap", CHECK(mremap(memory, 128 * KIB, 128 * KIB, MREMAP_MAYMOVE | MREMAP_FIXED,
                                other) == other));
    CHECK(other[0] == 0 && other[64 * KIB] == 1);
    SEEN("munmap", CHECK_IS(munmap(other, 256 * KIB), 0));
    /* A large mapping, and one of a file. */
    SEEN("mmap", memory = mmap(NULL, 8 * MIB, prot, flags, -1, 0));
    CHECK(memory != MAP_FAILED);
    CHECK_IS(munmap(memory, 8 * MIB), 0);
    FILE *file = tmpfile();
    CHECK(file && fputs("text", file) >= 0 && fflush(file) == 0);
    SEEN("mmap", memory = mmap(NULL, 4, PROT_READ, MAP_SHARED, fileno(file), 0));
    CHECK(memory != MAP_FAILED && memcmp(memory, "text", 4) == 0);
    SEEN("munmap", CHECK_IS(munmap(memory, 4), 0));
    refused();
    return 0;
}
