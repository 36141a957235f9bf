/* Gives blocks of malloc to a function of the allocator that it is linked to: by a call, with
 * BY_ADDRESS by its address, or with BY_LIBRARY by a library. */
#include "../../basics.h"

extern void dallocx(void *, int);
extern void mi_free_aligned(void *, size_t);
extern void release_by_weak(void *, int);

#ifdef BY_ADDRESS
void (*release)(void *, int) = dallocx;
#elif defined(BY_LIBRARY)
#define release release_by_weak
#else
#define release mi_free_aligned
#endif

int main(void)
{
    for (size_t size = 1; size < 3000; size += 7) {
        void *block = malloc(size);
        CHECK(block != NULL);
        release(memset(block, 7, size), 0);
    }
    return 0;
}
