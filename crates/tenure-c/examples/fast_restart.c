/* A server whose state is in a file in memory (memfd, or /dev/shm), which the next process
 * inherits: the server populates the mapping before it answers the first request, and it
 * releases its working memory without waiting before it restarts.
 *
 *     cc fast_restart.c $(pkg-config --cflags --libs tenure)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tenure.h>

#define STATE_BYTES ((size_t)64 << 20)
#define WORK_BYTES ((size_t)128 << 20)

static int report(size_t done_bytes, size_t total_bytes, void *data)
{
    (void)data;
    printf("warming up: %zu of %zu MiB\n", done_bytes >> 20, total_bytes >> 20);
    return 0;
}

/* Runs the server once; returns the number of requests in the state, earlier ones included. */
static int serve(int state_file)
{
    struct tenure_populate_options options;
    void *state, *work;
    int err = tenure_mmap(&state, STATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                          state_file, 0, 0);
    if (err < 0)
        goto failed;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.progress = report;
    err = tenure_populate_with(state, STATE_BYTES, TENURE_POPULATE_WRITE, &options);
    if (err < 0)
        goto failed;
    err = tenure_mmap(&work, WORK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, TENURE_MAP_POPULATE_WRITE);
    if (err < 0)
        goto failed;

    int *requests = state;
    for (int i = 0; i < 100; i++) {
        memset(work, i, 1 << 20);
        (*requests)++;
    }
    /* Takes microseconds; a worker thread frees the pages. */
    err = tenure_munmap(work, WORK_BYTES);
    if (err < 0)
        goto failed;
    return *requests;
failed:
    fprintf(stderr, "server: %s\n", strerror(-err));
    _exit(1);
}

int main(void)
{
    int state_file = memfd_create("state", MFD_CLOEXEC), status;

    if (state_file < 0 || ftruncate(state_file, (off_t)STATE_BYTES) != 0)
        return 1;
    for (int run = 1; run <= 2; run++) {
        fflush(stdout);
        pid_t server = fork();
        if (server == 0) {
            printf("requests so far: %d\n", serve(state_file));
            fflush(stdout);
            _exit(0);
        }
        if (server < 0 || waitpid(server, &status, 0) != server || status != 0)
            return 1;
    }
    return 0;
}
