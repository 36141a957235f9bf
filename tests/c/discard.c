/* tenure_discard() does what MADV_DONTNEED does, for small and large ranges, and
 * tenure_drain() waits. */
#include "check.h"

static void discard_part_of_mapping_reads_zeros(size_t len)
{
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_discard(memory + page(), len - 2 * page()), 0);
    CHECK(memory[0] == 7 && memory[len - 1] == 7);
    for (size_t at = page(); at < len - page(); at += page())
        CHECK_IS(memory[at], 0);
    CHECK_IS(munmap(memory, len), 0);
}

static void discard_private_file_reads_as_file(void)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_IS(ftruncate(fd, (off_t)page()), 0);
    CHECK_IS(pwrite(fd, "file", 4, 0), 4);
    char *memory = mmap(NULL, page(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(memory != MAP_FAILED);
    memcpy(memory, "mine", 4);
    CHECK_IS(tenure_discard(memory, page()), 0);
    CHECK(memcmp(memory, "file", 4) == 0);
    close(fd);
}

static void discard_invalid_range_changes_nothing(void)
{
    size_t len = 4 * page();
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_discard(memory + 1, page()), -EINVAL);
    CHECK_IS(tenure_discard(memory, 1), -EINVAL);
    CHECK_IS(tenure_discard(memory, 0), 0);
    others_lock(memory + page(), page());
    CHECK_IS(tenure_discard(memory, len), -EINVAL);
    others_unlock(memory, len);
    CHECK_IS(munmap(memory + 3 * page(), page()), 0);
    CHECK_IS(tenure_discard(memory, len), -ENOMEM);
    CHECK_IS(memory[0], 7);
    void *shared = mmap(NULL, len, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_IS(tenure_discard(shared, len), -EINVAL);
}

static void drain_after_large_munmap_leaves_nothing_pending(void)
{
    size_t len = (size_t)256 << 20;
    struct tenure_stats stats;
    char *memory = map(len);
    memset(memory, 7, len);
    CHECK_IS(tenure_munmap(memory, len), 0);
    CHECK_IS(tenure_drain(-2), -EINVAL);
    int answer = tenure_drain(0);
    CHECK(answer == 0 || answer == -ETIMEDOUT);
    CHECK_IS(tenure_drain(-1), 0);
    CHECK_IS(tenure_drain(0), 0);
    CHECK_IS(tenure_stats(&stats, sizeof(stats)), 0);
    CHECK_IS(stats.pending_release_bytes, 0);
}

int main(void)
{
    discard_part_of_mapping_reads_zeros(4 * page());
    discard_part_of_mapping_reads_zeros((size_t)64 << 20);
    discard_private_file_reads_as_file();
    discard_invalid_range_changes_nothing();
    drain_after_large_munmap_leaves_nothing_pending();
    return 0;
}
