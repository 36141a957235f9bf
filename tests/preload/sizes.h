/* Sizes on both sides of every threshold, and recognisable contents. */
#ifndef SIZES_H
#define SIZES_H

#include "../basics.h"

#include <malloc.h>

static const size_t sizes[] = { 1,           100,         4000,        60000,
                                64 << 10,    100000,      (256 << 10) - 1, 256 << 10,
                                1000000,     2 << 20,     5000000,     40 << 20 };
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static inline void fill(unsigned char *block, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i += 509)
        block[i] = (unsigned char)(i / 509 + seed);
    block[len - 1] = (unsigned char)seed;
}

static inline void check_filled(const unsigned char *block, size_t len, size_t filled,
                         unsigned seed)
{
    for (size_t i = 0; i < len && i < filled - 1; i += 509)
        CHECK_IS(block[i], (unsigned char)(i / 509 + seed));
    if (len >= filled)
        CHECK_IS(block[filled - 1], (unsigned char)seed);
}

#endif
