// CUDA's words and vector types.
#pragma once

// Variables have to be found by name.
#define __device__ __attribute__((visibility("default")))
#define __constant__ __attribute__((visibility("default")))
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "declare shared memory with SHARED or dynamic_shared<T>()");

#define KSIM_VECTOR2(name, T, alignment) \
    struct __attribute__((aligned(alignment))) name { T x, y; }; \
    static inline name make_##name(T x, T y) { return {x, y}; }
#define KSIM_VECTOR3(name, T) \
    struct name { T x, y, z; }; \
    static inline name make_##name(T x, T y, T z) { return {x, y, z}; }
#define KSIM_VECTOR4(name, T, alignment) \
    struct __attribute__((aligned(alignment))) name { T x, y, z, w; }; \
    static inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }

KSIM_VECTOR2(char2, signed char, 2)
KSIM_VECTOR2(uchar2, unsigned char, 2)
KSIM_VECTOR2(short2, short, 4)
KSIM_VECTOR2(ushort2, unsigned short, 4)
KSIM_VECTOR2(int2, int, 8)
KSIM_VECTOR2(uint2, unsigned int, 8)
KSIM_VECTOR2(float2, float, 8)
KSIM_VECTOR2(double2, double, 16)
KSIM_VECTOR2(longlong2, long long, 16)
KSIM_VECTOR2(ulonglong2, unsigned long long, 16)
KSIM_VECTOR3(int3, int)
KSIM_VECTOR3(uint3, unsigned int)
KSIM_VECTOR3(float3, float)
KSIM_VECTOR4(char4, signed char, 4)
KSIM_VECTOR4(uchar4, unsigned char, 4)
KSIM_VECTOR4(short4, short, 8)
KSIM_VECTOR4(ushort4, unsigned short, 8)
KSIM_VECTOR4(int4, int, 16)
KSIM_VECTOR4(uint4, unsigned int, 16)
KSIM_VECTOR4(float4, float, 16)
typedef uint3 dim3;

// Of the fiber that runs, of the block that runs, of the grid.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern uint3 blockDim;
extern uint3 gridDim;
static const int warpSize = 32;

// CUresult values that a running kernel may end with.
enum {
    KSIM_SUCCESS = 0,
    KSIM_ILLEGAL_ADDRESS = 700,
    KSIM_LAUNCH_TIMEOUT = 702,
    KSIM_ASSERT = 710,
    KSIM_ILLEGAL_INSTRUCTION = 715,
    KSIM_MISALIGNED_ADDRESS = 716,
    KSIM_INVALID_ADDRESS_SPACE = 717,
    KSIM_LAUNCH_FAILED = 719,
};
