/* tenure_mmap() returns a mapping as requested, or maps nothing. */
#include "check.h"

#include <fcntl.h>

enum { PROT = PROT_READ | PROT_WRITE, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS };

static void mmap_anonymous_is_populated(void)
{
    size_t len = 8 * page();
    void *memory;
    CHECK_IS(tenure_mmap(&memory, len, PROT, PRIVATE, -1, 0,
                         TENURE_MAP_POPULATE_WRITE),
             0);
    CHECK_IS(resident(memory, len), 8);
    CHECK_IS(tenure_munmap(memory, len), 0);

    /* fd is ignored, and the length is rounded up. */
    CHECK_IS(tenure_mmap(&memory, len - 1, PROT, PRIVATE, 12345, 0, 0), 0);
    ((char *)memory)[len - 1] = 1;
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static int first_byte(void *memory)
{
    return *(char *)memory;
}

static void mmap_with_flags_is_locked_and_advised(void)
{
    size_t len = 64 * page();
    void *memory;
    int answer = tenure_mmap(&memory, len, PROT, PRIVATE, -1, 0,
                             TENURE_MAP_LOCKONFAULT | TENURE_MAP_NODUMP |
                                 TENURE_MAP_WIPEONFORK);
    if (answer == -ENOMEM || answer == -EPERM)
        skip("RLIMIT_MEMLOCK does not allow locking 64 pages");
    CHECK_IS(answer, 0);
    CHECK_IS(resident(memory, len), 0);
    CHECK(has_flag(memory, onfault_flag()));
    CHECK(has_flag(memory, " dd"));
    CHECK(has_flag(memory, " wf"));
    *(char *)memory = 1;
    CHECK_IS(in_child(first_byte, memory), 0);
    CHECK_IS(tenure_munmap(memory, len), 0);
}

static void mmap_file_maps_it_or_nothing(void)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    void *memory;
    CHECK(fd >= 0);
    CHECK_IS(ftruncate(fd, (off_t)(2 * page())), 0);
    CHECK_IS(pwrite(fd, "x", 1, (off_t)page()), 1);
    CHECK_IS(tenure_mmap(&memory, page(), PROT, MAP_SHARED, fd, (off_t)page(),
                         TENURE_MAP_POPULATE_READ),
             0);
    CHECK_IS(*(char *)memory, 'x');
    CHECK_IS(tenure_munmap(memory, page()), 0);

    /* The file is too short: nothing stays mapped, and `out` is unchanged. */
    memory = &fd;
    CHECK_IS(tenure_mmap(&memory, 4 * page(), PROT, MAP_SHARED, fd, 0,
                         TENURE_MAP_POPULATE_READ),
             -EFAULT);
    CHECK(memory == &fd);
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps))
        CHECK(strstr(line, "memfd:file") == NULL);
    fclose(maps);
    close(fd);
    CHECK_IS(tenure_mmap(&memory, page(), PROT, MAP_SHARED, fd, 0, 0), -EBADF);
    CHECK_IS(tenure_mmap(&memory, page(), PROT, MAP_SHARED, -1, 0, 0), -EBADF);
}

static void mmap_huge_pages_succeeds_or_is_enomem(void)
{
    void *memory;
    int answer = tenure_mmap(&memory, 1, PROT, PRIVATE | MAP_HUGETLB, -1, 0, 0);
    /* The system may have no huge pages. */
    CHECK(answer == 0 || answer == -ENOMEM);
}

static void mmap_invalid_call_fails(void)
{
    void *memory;
    int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    unsigned ways = TENURE_MAP_POPULATE_READ | TENURE_MAP_POPULATE_WRITE;
    size_t len = page();

    CHECK_IS(tenure_mmap(NULL, len, PROT, PRIVATE, -1, 0, 0), -EFAULT);
    CHECK_IS(tenure_mmap(&memory, 0, PROT, PRIVATE, -1, 0, 0), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, len, PROT, PRIVATE | MAP_FIXED, -1, 0, 0), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, len, PROT, PRIVATE, -1, 0, 0x80), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, len, PROT, PRIVATE, -1, 0, ways), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, SIZE_MAX / 2, PROT, PRIVATE, -1, 0, 0), -ENOMEM);
    CHECK_IS(tenure_mmap(&memory, len, PROT, MAP_SHARED | MAP_ANONYMOUS, -1, 0,
                         TENURE_MAP_WIPEONFORK),
             -EINVAL);
    CHECK(read_only >= 0);
    CHECK_IS(tenure_mmap(&memory, len, PROT, MAP_SHARED, read_only, 0, 0), -EACCES);
    CHECK_IS(tenure_mmap(&memory, len, PROT_READ, MAP_SHARED, read_only, 1, 0), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, len, PROT_READ, MAP_SHARED, read_only, -1, 0), -EINVAL);
    CHECK_IS(tenure_mmap(&memory, len, PROT_READ, MAP_PRIVATE, read_only, 0,
                         TENURE_MAP_POPULATE_WRITE),
             -EACCES);
}

int main(void)
{
    mmap_anonymous_is_populated();
    mmap_file_maps_it_or_nothing();
    mmap_huge_pages_succeeds_or_is_enomem();
    mmap_invalid_call_fails();
    mmap_with_flags_is_locked_and_advised();
    return 0;
}
