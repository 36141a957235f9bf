/* Defines the functions that the compiler's flags name, over the C library's, and mixes them
 * with the others. */
#include "../../basics.h"

#include <malloc.h>
#include <sys/mman.h>

/* The C library's, under the names that nobody interposes. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

#ifdef OWN_MALLOC
void *malloc(size_t size) { return __libc_malloc(size); }
#endif
#ifdef OWN_CALLOC
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
#endif
#ifdef OWN_REALLOC
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
#endif
#ifdef OWN_FREE
void free(void *block) { __libc_free(block); }
#endif

int main(void)
{
    /* In a program at a fixed address these are its own entries for the functions. */
    void *(*volatile address_of_malloc)(size_t) = malloc;
    void *(*volatile address_of_calloc)(size_t, size_t) = calloc;
    void *(*volatile address_of_realloc)(void *, size_t) = realloc;
    void (*volatile address_of_free)(void *) = free;
    for (size_t size = 1; size < 3000; size++) {
        void *aligned;
        CHECK_IS(posix_memalign(&aligned, 64, size), 0);
        memset(aligned, 1, size);
        aligned = address_of_realloc(aligned, 2 * size);
        CHECK(aligned != NULL);
        free(aligned);
        char *zeros = address_of_calloc(1, size);
        CHECK(zeros != NULL && zeros[size - 1] == 0);
        address_of_free(realloc(zeros, 3 * size));
        char *text = strdup("text");
        CHECK(text != NULL);
        free(realloc(text, size));
        address_of_free(address_of_malloc(size));
    }
    for (int count = 0; count < 5; count++) {
        size_t bytes = 8 << 20;
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        memset(memory, 1, bytes);
        CHECK_IS(munmap(memory, bytes), 0);
    }
    return 0;
}
