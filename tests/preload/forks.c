/* Forks while other threads allocate, map and unmap: each child can do the same
 * and has its own copy of every block, and so has its child. */
#include "../basics.h"

#include <pthread.h>
#include <stdatomic.h>

#define FORKS 24

static atomic_int over;
static unsigned char *kept[8];

static void use_all(unsigned seed)
{
    unsigned char *blocks[8];
    for (unsigned i = 0; i < 8; i++) {
        size_t len = (seed * 31 + i * 65537) % (3 << 20) + 100;
        blocks[i] = i % 2 ? malloc(len) : calloc(1, len);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], (int)i, len < 5000 ? len : 5000);
        blocks[i] = realloc(blocks[i], len * 2);
        CHECK(blocks[i] != NULL);
        CHECK_IS(blocks[i][99], i);
    }
    char *memory = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memory[1 << 20] = 1;
    CHECK_IS(madvise(memory, 5 << 20, MADV_DONTNEED), 0);
    CHECK_IS(memory[1 << 20], 0);
    CHECK_IS(munmap(memory, 5 << 20), 0);
    for (unsigned i = 0; i < 8; i++)
        free(blocks[i]);
}

static void *busy(void *data)
{
    unsigned seed = *(unsigned *)data;
    while (!over)
        use_all(seed++);
    return NULL;
}

static void check_kept(void)
{
    for (unsigned i = 0; i < 8; i++)
        for (size_t at = 0; at < 1 << 20; at += 4096)
            CHECK_IS(kept[i][at], i);
}

static int grandchild(void *data)
{
    (void)data;
    alarm(60);
    use_all(1);
    check_kept();
    return 0;
}

static int child(void *data)
{
    unsigned round = *(unsigned *)data;
    alarm(60); /* a lock held at the fork would never be released */
    check_kept();
    for (unsigned i = 0; i < 4; i++)
        use_all(round + i);
    for (unsigned i = 0; i < 4; i++) {
        memset(kept[i], 77, 1 << 20);
        free(kept[i]);
        kept[i] = malloc(1 << 20);
        memset(kept[i], (int)i, 1 << 20);
    }
    if (round % 8 == 0)
        CHECK_IS(in_child(grandchild, NULL), 0);
    return 0;
}

int main(void)
{
    pthread_t threads[2];
    unsigned seeds[2] = { 1, 10000 };

    for (unsigned i = 0; i < 8; i++) {
        kept[i] = malloc(1 << 20);
        memset(kept[i], (int)i, 1 << 20);
    }
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, busy, &seeds[i]), 0);
    for (unsigned round = 0; round < FORKS; round++)
        CHECK_IS(in_child(child, &round), 0);
    check_kept();
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    return 0;
}
