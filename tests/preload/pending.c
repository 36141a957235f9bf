/* A mapping that a limit refuses while released memory is pending succeeds once that is
 * free: with munmap(2) it would be free already. */
#include "../basics.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define RELEASED (64 * MIB)
#define WANTED (48 * MIB)

/* Tells when memory moves and when its pages go away. The kernel waits until that is read,
 * and so does the thread that frees them. */
static int events;

static int is_read;

static void wait_ms(long ms)
{
    struct timespec time = { 0, ms * 1000000 };
    nanosleep(&time, NULL);
}

/* Reads that memory moves, where anybody moves it; that pages go away only some time after
 * `is_read` is set, when the file is closed. */
static void *read_events(void *unused)
{
    struct uffd_msg event;
    int has_moved = 0;
    while (!__atomic_load_n(&is_read, __ATOMIC_SEQ_CST)) {
        has_moved = has_moved || read(events, &event, sizeof(event)) > 0;
        wait_ms(1);
    }
    wait_ms(100);
    CHECK_IS(close(events), 0);
    return unused;
}

static void open_events(char *memory)
{
    struct uffdio_api api = { .api = UFFD_API,
                              .features = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE };
    struct uffdio_register range = { .range = { (uintptr_t)memory, RELEASED },
                                     .mode = UFFDIO_REGISTER_MODE_MISSING };
    /* 1 is UFFD_USER_MODE_ONLY. */
    events = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    if (events < 0)
        skip("there is no userfaultfd here");
    if (ioctl(events, UFFDIO_API, &api) != 0)
        skip("userfaultfd has no events here");
    CHECK_IS(ioctl(events, UFFDIO_REGISTER, &range), 0);
}

/* Reads the size of this process: all of it, or its data. */
static size_t used(int resource)
{
    size_t all, data;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_IS(fscanf(file, "%zu %*u %*u %*u %*u %zu", &all, &data), 2);
    fclose(file);
    return (resource == RLIMIT_AS ? all : data) * page();
}

static char *with_mmap(char *memory)
{
    CHECK_IS(munmap(memory, page()), 0);
    return mmap(NULL, WANTED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static char *with_mremap(char *memory)
{
    return mremap(memory, page(), WANTED, MREMAP_MAYMOVE);
}

static void take_under(int resource, char *(*take)(char *))
{
    char *memory = map_apart(RELEASED), *small = map(page());
    struct rlimit before, limit;
    pthread_t reader;
    memset(memory, 1, RELEASED);
    memset(small, 2, page());
    open_events(memory);
    is_read = 0;
    CHECK_IS(pthread_create(&reader, NULL, read_events, NULL), 0);
    CHECK_IS(getrlimit(resource, &before), 0);
    limit = before;
    limit.rlim_cur = used(resource);
    CHECK_IS(munmap(memory, RELEASED), 0);
    CHECK_IS(setrlimit(resource, &limit), 0);
    __atomic_store_n(&is_read, 1, __ATOMIC_SEQ_CST);
    char *taken = take(small);
    int error = errno;
    CHECK_IS(setrlimit(resource, &before), 0);
    if (taken == MAP_FAILED)
        CHECK_IS(error, 0);
    CHECK_IS(taken[0], take == with_mremap ? 2 : 0);
    CHECK_IS(taken[WANTED - 1], 0);
    CHECK_IS(munmap(taken, WANTED), 0);
    CHECK_IS(pthread_join(reader, NULL), 0);
}

int main(void)
{
    /* Whatever frees memory is there from now on. */
    char *memory = map(RELEASED);
    memset(memory, 1, RELEASED);
    CHECK_IS(munmap(memory, RELEASED), 0);
    wait_ms(100);
    take_under(RLIMIT_AS, with_mmap);
    take_under(RLIMIT_DATA, with_mmap);
    take_under(RLIMIT_AS, with_mremap);
    take_under(RLIMIT_DATA, with_mremap);
    return 0;
}
