// What the simulated compiler calls a cubin: this header, then a shared object.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ImageHeader {
    char magic[8];
    int32_t sm;
    // 0: the stand-in for PTX, which later devices run too.
    int32_t is_cubin;
    uint64_t bytes;
    uint64_t hash;
};
static const char IMAGE_MAGIC[8] = {'K', 'S', 'I', 'M', 'O', 'B', 'J', '1'};

inline uint64_t image_hash(const void* data, size_t bytes, uint64_t seed = 14695981039346656037ull) {
    const unsigned char* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; i++) seed = (seed ^ at[i]) * 1099511628211ull;
    return seed;
}
