/* mmap, munmap, mremap and madvise have the kernel's meaning and the kernel's errors,
 * whatever the size and the kind of memory. */
#include "../basics.h"

#include <sys/resource.h>

#define MIB ((size_t)1 << 20)

static char *fresh(size_t len, int flags)
{
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, len);
    return memory;
}

static int is_mapped(char *memory)
{
    return msync(memory, page(), MS_ASYNC) == 0;
}

/* Whether the byte is there with the contents of `fresh`. Another mapping may be there. */
static int is_kept(const char *byte)
{
    int ends[2];
    char found = 0;
    CHECK_IS(pipe(ends), 0);
    if (write(ends[1], byte, 1) == 1)
        CHECK_IS(read(ends[0], &found, 1), 1);
    CHECK_IS(close(ends[0]) + close(ends[1]), 0);
    return found == 1;
}

static void unmapping(void)
{
    char *memory = fresh(32 * MIB, MAP_PRIVATE);
    /* Parts: in the middle, with a part of a page, at the end. The next mapping may come
     * to lie in such a hole, so the test does not assume that holes stay. */
    CHECK_IS(munmap(memory + 8 * MIB, 5 * MIB - 1), 0);
    CHECK(!is_kept(memory + 8 * MIB) && !is_kept(memory + 13 * MIB - 1));
    CHECK_IS(memory[8 * MIB - page()], 1);
    CHECK_IS(memory[13 * MIB], 1);
    CHECK_IS(munmap(memory + 24 * MIB, 8 * MIB), 0);
    CHECK_IS(memory[24 * MIB - 1], 1);
    CHECK_IS(munmap(memory + 13 * MIB, 11 * MIB), 0);
    CHECK_IS(memory[8 * MIB - 1], 1);
    CHECK_IS(munmap(memory, 8 * MIB), 0);
    /* Ranges with holes, and ranges without any mapping. */
    memory = fresh(32 * MIB, MAP_PRIVATE);
    CHECK_IS(munmap(memory + 9 * MIB, page()), 0);
    CHECK(!is_mapped(memory + 9 * MIB) && is_mapped(memory + 9 * MIB + page()));
    errno = 77;
    CHECK_IS(munmap(memory + MIB, 30 * MIB), 0);
    CHECK_IS(memory[MIB - 1], 1);
    CHECK_IS(memory[31 * MIB], 1);
    CHECK_IS(munmap(memory, MIB), 0);
    CHECK_IS(munmap(memory + 31 * MIB, MIB), 0);
    CHECK_IS(errno, 77);
    memory = fresh(16 * MIB, MAP_SHARED);
    CHECK_IS(munmap(memory, 16 * MIB), 0);
    errno = 0;
    CHECK_IS(munmap(memory + 1, 16 * MIB), -1);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK_IS(munmap(memory, 0), -1);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK_IS(munmap(memory, SIZE_MAX), -1);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK_IS(munmap(memory, SIZE_MAX - 3 * page()), -1);
    CHECK_IS(errno, EINVAL);
}

static void discarding(void)
{
    char *memory = fresh(32 * MIB, MAP_PRIVATE);
    errno = 77;
    CHECK_IS(madvise(memory + 8 * MIB, 16 * MIB - 1, MADV_DONTNEED), 0);
    CHECK_IS(errno, 77);
    CHECK_IS(memory[8 * MIB - 1], 1);
    CHECK_IS(memory[8 * MIB], 0);
    CHECK_IS(memory[24 * MIB - 1], 0);
    CHECK_IS(memory[24 * MIB], 1);
    memset(memory, 2, 32 * MIB);
    /* With a hole, both sides are discarded, and the call fails with ENOMEM. */
    CHECK_IS(munmap(memory + 10 * MIB, page()), 0);
    errno = 0;
    CHECK_IS(madvise(memory, 32 * MIB, MADV_DONTNEED), -1);
    CHECK_IS(errno, ENOMEM);
    CHECK_IS(memory[0], 0);
    CHECK_IS(memory[31 * MIB], 0);
    errno = 0;
    CHECK_IS(madvise(memory + 1, 8 * MIB, MADV_DONTNEED), -1);
    CHECK_IS(errno, EINVAL);
    CHECK_IS(madvise(memory, 0, MADV_DONTNEED), 0);
    errno = 0;
    CHECK_IS(madvise(memory, 8 * MIB, 12345), -1);
    CHECK_IS(errno, EINVAL);
    CHECK_IS(munmap(memory, 10 * MIB), 0);
    CHECK_IS(munmap(memory + 10 * MIB + page(), 22 * MIB - page()), 0);
    /* Shared memory keeps its contents. */
    memory = fresh(8 * MIB, MAP_SHARED);
    CHECK_IS(madvise(memory, 8 * MIB, MADV_DONTNEED), 0);
    CHECK_IS(memory[5 * MIB], 1);
    CHECK_IS(munmap(memory, 8 * MIB), 0);
}

static void locked(void)
{
    struct rlimit limit;
    CHECK_IS(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_cur < 6 * MIB)
        return;
    char *memory = fresh(8 * MIB, MAP_PRIVATE);
    /* mlock fails where everything is locked already and the limit is reached. */
    if (mlock(memory, 5 * MIB) == 0) {
        errno = 0;
        CHECK_IS(madvise(memory, 5 * MIB, MADV_DONTNEED), -1);
        CHECK_IS(errno, EINVAL);
        CHECK_IS(memory[MIB], 1);
    }
    CHECK_IS(munmap(memory, 8 * MIB), 0);
}

static void files(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL);
    CHECK_IS(ftruncate(fileno(file), 8 * MIB), 0);
    CHECK_IS(pwrite(fileno(file), "x", 1, 6 * MIB), 1);
    char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    CHECK(memory != MAP_FAILED);
    CHECK_IS(memory[6 * MIB], 'x');
    memory[6 * MIB] = 'y';
    CHECK_IS(madvise(memory, 8 * MIB, MADV_DONTNEED), 0);
    CHECK_IS(memory[6 * MIB], 'x');
    CHECK_IS(munmap(memory, 8 * MIB), 0);
    memory = mmap64(NULL, 8 * MIB, PROT_READ, MAP_SHARED, fileno(file), 2 * MIB);
    CHECK(memory != MAP_FAILED);
    CHECK_IS(memory[4 * MIB], 'x');
    CHECK_IS(munmap(memory, 8 * MIB), 0);
    fclose(file);
    errno = 0;
    CHECK(mmap(NULL, 8 * MIB, PROT_READ, MAP_PRIVATE, -1, 0) == MAP_FAILED);
    CHECK_IS(errno, EBADF);
    errno = 0;
    CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK(mmap(NULL, SIZE_MAX / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0) == MAP_FAILED);
    CHECK_IS(errno, ENOMEM);
}

static void resizing(void)
{
    char *memory = fresh(32 * MIB, MAP_PRIVATE);
    CHECK(mremap(memory, 32 * MIB, 20 * MIB - 5, 0) == memory);
    CHECK(is_kept(memory + 20 * MIB - 1) && !is_kept(memory + 20 * MIB));
    CHECK(mremap(memory, 20 * MIB, 10 * MIB, MREMAP_MAYMOVE) == memory);
    CHECK(is_kept(memory + 10 * MIB - 1) && !is_kept(memory + 10 * MIB));
    /* Growing may move the mapping: the freed tail may be in use again. */
    memory = mremap(memory, 10 * MIB, 40 * MIB, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    CHECK_IS(memory[10 * MIB - 1], 1);
    CHECK_IS(memory[39 * MIB], 0);
    CHECK(mremap(memory, 40 * MIB, 39 * MIB, 0) == memory);
    CHECK(!is_mapped(memory + 39 * MIB));
    char *place = fresh(10 * MIB, MAP_PRIVATE);
    CHECK(mremap(memory, 39 * MIB, 10 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    CHECK_IS(place[10 * MIB - 1], 1);
    CHECK_IS(munmap(place, 10 * MIB), 0);
    /* No mapping, an unaligned address, no length, an unknown flag. */
    place = (char *)(uintptr_t)(4 * MIB);
    /* Kernels as old as 5.10 shrink what is not there. */
    void *answer = (void *)syscall(SYS_mremap, place, 10 * MIB, 2 * MIB, 0, NULL);
    errno = 0;
    CHECK(mremap(place, 10 * MIB, 2 * MIB, 0) == answer);
    CHECK(answer == place || errno == EFAULT);
    place = fresh(10 * MIB, MAP_PRIVATE);
    errno = 0;
    CHECK(mremap(place + 1, 9 * MIB, 2 * MIB, 0) == MAP_FAILED);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK(mremap(place, 10 * MIB, 0, 0) == MAP_FAILED);
    CHECK_IS(errno, EINVAL);
    errno = 0;
    CHECK(mremap(place, 10 * MIB, 2 * MIB, 0x1000) == MAP_FAILED);
    CHECK_IS(errno, EINVAL);
    CHECK_IS(place[9 * MIB], 1);
    CHECK_IS(munmap(place, 10 * MIB), 0);
}

int main(void)
{
    unmapping();
    discarding();
    locked();
    files();
    resizing();
    return 0;
}
