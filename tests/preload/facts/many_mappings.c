/* Ranges of very many mappings, given to munmap, madvise and mremap: as many mappings as the
 * first argument says, by as many threads at a time as the second says. */
#include "../../basics.h"

#include <pthread.h>

static size_t count;

/* Memory of `count` mappings: every other page is read-only. The last pages have contents. */
static char *memory_of_many(void)
{
    char *memory = mmap(NULL, count * page(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory + (count - 2) * page(), 1, 2 * page());
    for (size_t i = 1; i < count; i += 2) {
        if (mprotect(memory + i * page(), page(), PROT_READ) == 0)
            continue;
        CHECK_IS(errno, ENOMEM);
        skip("the process may not have so many mappings");
    }
    return memory;
}

static int is_mapped(char *memory)
{
    return msync(memory, page(), MS_ASYNC) == 0;
}

static void *discard(void *memory)
{
    CHECK_IS(madvise(memory, count * page(), MADV_DONTNEED), 0);
    return NULL;
}

static void discard_at_once(char *memory, size_t thread_count)
{
    pthread_t threads[64];
    CHECK(thread_count <= 64);
    for (size_t i = 0; i < thread_count; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, discard, memory), 0);
    for (size_t i = 0; i < thread_count; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
}

int main(int argc, char **argv)
{
    CHECK_IS(argc, 3);
    count = strtoul(argv[1], NULL, 10);
    char *memory = memory_of_many();
    const char *last = memory + (count - 1) * page();
    CHECK_IS(*last, 1);
    discard_at_once(memory, strtoul(argv[2], NULL, 10));
    CHECK_IS(*last, 0);
    CHECK_IS(munmap(memory, count * page()), 0);
    CHECK(!is_mapped(memory) && !is_mapped(memory + (count - 1) * page()));

    memory = memory_of_many();
    CHECK(mremap(memory, count * page(), page(), 0) == memory);
    CHECK(is_mapped(memory) && !is_mapped(memory + page()));
    CHECK(!is_mapped(memory + (count - 1) * page()));
    CHECK_IS(munmap(memory, page()), 0);
    return 0;
}
