/* Uses C++'s operators, most for aligned types, and malloc's family beside them. */
#include "../../basics.h"

extern void *_Znwm(size_t);
extern void *_ZnwmSt11align_val_t(size_t, size_t);
extern void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t, size_t, const void *);
extern void *_ZnamSt11align_val_t(size_t, size_t);
extern void _ZdlPv(void *);
extern void _ZdlPvSt11align_val_t(void *, size_t);
extern void _ZdaPvSt11align_val_t(void *, size_t);

static void *filled(void *block, size_t align, size_t size)
{
    CHECK(block != NULL);
    CHECK_IS((uintptr_t)block % align, 0);
    return memset(block, 1, size);
}

int main(void)
{
    const char nothrow = 0;
    for (size_t size = 1; size < 3000; size += 7) {
        for (size_t align = 32; align <= 4096; align *= 2) {
            void *one = filled(_ZnwmSt11align_val_t(size, align), align, size);
            void *many = filled(_ZnamSt11align_val_t(size, align), align, size);
            void *other = filled(_ZnwmSt11align_val_tRKSt9nothrow_t(size, align, &nothrow),
                                 align, size);
            void *block = NULL;
            CHECK_IS(posix_memalign(&block, align, size), 0);
            free(realloc(filled(block, align, size), 2 * size));
            free(filled(aligned_alloc(align, size), align, size));
            void *plain = filled(_Znwm(size), 16, size);
            free(filled(malloc(size), 16, size));
            _ZdlPv(plain);
            _ZdlPvSt11align_val_t(one, align);
            _ZdaPvSt11align_val_t(many, align);
            _ZdlPvSt11align_val_t(other, align);
        }
    }
    return 0;
}
