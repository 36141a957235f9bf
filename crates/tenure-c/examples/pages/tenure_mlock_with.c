#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

static int show(size_t done_bytes, size_t total_bytes, void *data)
{
    const char *what = data;
    printf("%s: %zu of %zu MiB\n", what, done_bytes >> 20, total_bytes >> 20);
    return 0; /* go on */
}

int main(void)
{
    size_t len = 4 << 20;
    void *memory;
    struct tenure_populate_options options;

    int err = tenure_mmap(&memory, len, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0);
    if (err < 0)
        return 1;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.progress = show;
    options.data = "index";
    err = tenure_mlock_with(memory, len, 0, &options);
    if (err < 0)
        fprintf(stderr, "lock: %s\n", strerror(-err));
    tenure_munmap(memory, len);
    return err < 0;
}
