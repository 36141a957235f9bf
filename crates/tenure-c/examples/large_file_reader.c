/* Reads a large file at random and keeps the pages that it has read in memory, and no
 * others: the mapping of the file is locked on fault. If RLIMIT_MEMLOCK does not allow that,
 * the program goes on without the lock.
 *
 *     cc large_file_reader.c $(pkg-config --cflags --libs tenure)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tenure.h>

static int open_or_make(const char *path)
{
    if (path != NULL)
        return open(path, O_RDONLY | O_CLOEXEC);
    char name[] = "/tmp/tenure-example-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || unlink(name) != 0 || ftruncate(fd, 64 << 20) != 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    int fd = open_or_make(argc > 1 ? argv[1] : NULL);
    struct stat file;
    void *memory;
    unsigned long sum = 0;

    if (fd < 0 || fstat(fd, &file) != 0) {
        perror("file");
        return 1;
    }
    size_t len = (size_t)file.st_size;
    int err = tenure_mmap(&memory, len, PROT_READ, MAP_SHARED, fd, 0,
                          TENURE_MAP_LOCKONFAULT);
    if (err == -ENOMEM || err == -EPERM) {
        fprintf(stderr, "not locked: ulimit -l is too low for %zu bytes\n", len);
        err = tenure_mmap(&memory, len, PROT_READ, MAP_SHARED, fd, 0, 0);
    }
    if (err < 0) {
        fprintf(stderr, "mmap: %s\n", strerror(-err));
        return 1;
    }
    close(fd);
    for (int i = 0; i < 1000; i++)
        sum += ((unsigned char *)memory)[(size_t)rand() % len];
    printf("1000 reads, sum %lu\n", sum);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return tenure_munmap(memory, (len + page - 1) / page * page) < 0;
}
