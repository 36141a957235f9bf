/* An allocator with C++'s operators new and delete. As jemalloc's, they call its functions by the
 * names that another library may have as well to allocate, and its own function to free. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RESERVE ((size_t)1 << 30)
#define MAGIC 0x616c6c6f6361746full

struct header {
    uint64_t magic;
    size_t size;
};

static char *next;

/* Blocks are not used again. */
static void *allocate(size_t align, size_t size)
{
    static char *start;
    if (start == NULL) {
        start = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            _exit(8);
        __atomic_store_n(&next, start, __ATOMIC_RELAXED);
    }
    if (align < 16)
        align = 16;
    if (size > RESERVE / 4 || align > RESERVE / 4)
        return NULL;
    uintptr_t at = (uintptr_t)__atomic_fetch_add(&next, sizeof(struct header) + align + size,
                                                 __ATOMIC_RELAXED);
    uintptr_t block = (at + sizeof(struct header) + align - 1) & ~(align - 1);
    if (block + size > (uintptr_t)start + RESERVE)
        _exit(8);
    ((struct header *)block)[-1] = (struct header){MAGIC, size};
    return (void *)block;
}

static struct header *header_of(void *block)
{
    struct header *header = (struct header *)block - 1;
    if (header->magic != MAGIC)
        _exit(9);
    return header;
}

static void release(void *block)
{
    if (block != NULL)
        header_of(block)->magic = 0;
}

void *malloc(size_t size) { return allocate(16, size); }
void free(void *block) { release(block); }
void *memalign(size_t align, size_t size) { return allocate(align, size); }
void *aligned_alloc(size_t align, size_t size) { return allocate(align, size); }
size_t malloc_usable_size(void *block) { return block ? header_of(block)->size : 0; }

void *calloc(size_t count, size_t size)
{
    return allocate(16, count * size);
}

void *realloc(void *block, size_t size)
{
    void *moved = allocate(16, size);
    if (moved != NULL && block != NULL) {
        size_t old = header_of(block)->size;
        memcpy(moved, block, old < size ? old : size);
        release(block);
    }
    return moved;
}

/* As jemalloc's and mimalloc's: know no other allocator's blocks. */
void dallocx(void *block, int flags) { release(flags == 0 ? block : NULL); }
void mi_free_aligned(void *block, size_t align) { release(align == 0 ? block : NULL); }

int posix_memalign(void **out, size_t align, size_t size)
{
    *out = allocate(align, size);
    return *out == NULL ? ENOMEM : 0;
}

/* operator new(size_t): jemalloc's calls malloc once the new handler has found memory. */
void *_Znwm(size_t size)
{
    void *block = malloc(size);
    return block != NULL ? block : calloc(1, size);
}

/* operator new(size_t, align_val_t), and with nothrow_t */
void *_ZnwmSt11align_val_t(size_t size, size_t align)
{
    void *block = aligned_alloc(align, size);
    return block != NULL ? block : malloc(size);
}

void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void *nothrow)
{
    void *block = memalign(align, size);
    return block != NULL || nothrow != NULL ? block : malloc(size);
}

/* operator new[](size_t, align_val_t) */
void *_ZnamSt11align_val_t(size_t size, size_t align)
{
    void *block;
    return posix_memalign(&block, align, size) == 0 ? block : malloc(size);
}

/* operator delete(void *), operator delete(void *, align_val_t), operator delete[](void *, align_val_t) */
void _ZdlPv(void *block) { release(block); }
void _ZdlPvSt11align_val_t(void *block, size_t align) { release(align ? block : NULL); }
void _ZdaPvSt11align_val_t(void *block, size_t align) { release(align ? block : NULL); }
