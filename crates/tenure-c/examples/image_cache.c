/* A cache of decoded pictures that the kernel may purge: a picture is volatile while it is
 * not shown, and the program decodes it again if it was purged meanwhile.
 *
 *     cc image_cache.c $(pkg-config --cflags --libs tenure)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenure.h>

#define PICTURES 8
#define PICTURE_BYTES ((size_t)1 << 20)

static char *pictures[PICTURES];
static unsigned decoded;

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-result));
        exit(1);
    }
}

static void decode(int number)
{
    memset(pictures[number], 'a' + number, PICTURE_BYTES);
    decoded++;
}

/* Keeps the picture in memory until hide(). */
static const char *show(int number)
{
    if (pictures[number] == NULL) {
        void *memory;
        check(tenure_mmap(&memory, PICTURE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 0),
              "mmap");
        pictures[number] = memory;
        decode(number);
        return pictures[number];
    }
    int purged = tenure_mnovolatile(pictures[number], PICTURE_BYTES, NULL, 0, NULL);
    check(purged, "mnovolatile");
    if (purged)
        decode(number);
    return pictures[number];
}

static void hide(int number)
{
    check(tenure_mvolatile(pictures[number], PICTURE_BYTES), "mvolatile");
}

int main(void)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PICTURES; i++) {
            const char *picture = show(i);
            if (picture[0] != 'a' + i || picture[PICTURE_BYTES - 1] != 'a' + i)
                return 1;
            hide(i);
        }
        /* The kernel does this when it needs memory. */
        if (round == 0)
            check(tenure_purge(pictures[3], PICTURE_BYTES), "purge");
    }
    printf("%u pictures shown 3 times, decoded %u times\n", PICTURES, decoded);
    for (int i = 0; i < PICTURES; i++)
        check(tenure_munmap(pictures[i], PICTURE_BYTES), "munmap");
    return 0;
}
