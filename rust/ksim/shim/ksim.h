// Force-included before every kernel source: CUDA C++ for g++. Thread blocks are fibers of one OS
// thread (fiber.h), grids start, wait for each other and end (grid.h), warp operations are meetings
// of fibers (warp.h), device arithmetic is host arithmetic without contraction (numerics.h). What is
// declared here and no inline function is in runtime.cpp.
#pragma once
#define ONEGRAPH_SIM 1

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "abi.h"
// Every object has a runtime of its own.
#pragma GCC visibility push(hidden)
#include "types.h"
#include "fiber.h"
#include "warp.h"
#include "grid.h"
#include "numerics.h"
#include "copies.h"
#include "products.h"
#include "builtins.h"
#pragma GCC visibility pop

#define KSIM_EXPORT extern "C" __attribute__((visibility("default")))
#define TABLE [[maybe_unused]] static const
#define DEVICE static inline __attribute__((always_inline))
#define KSIM_KERNEL(name, Params, threads, min_blocks)                                       \
    static_assert(__is_trivially_copyable(Params), "a kernel's parameters are plain data");  \
    static void name##_body(const Params& p);                                                \
    static void name##_run(const void* params) {                                             \
        name##_body(*static_cast<const Params*>(params));                                    \
    }                                                                                        \
    KSIM_EXPORT const ksim_kernel name##_ksim = {name##_run, sizeof(Params), threads,        \
                                                 min_blocks};                                \
    static void name##_body(const Params& p)
#define PLAIN_KERNEL_BOUNDS(name, Params, threads, min_blocks) \
    KSIM_KERNEL(name, Params, threads, min_blocks)
#define PLAIN_KERNEL(name, Params) KSIM_KERNEL(name, Params, KSIM_MAX_THREADS, 1)
// All static shared memory is one section: poisoned at each block's start, kept apart for blocks
// that are in flight together.
#define SHARED static __attribute__((section("ksim_shared")))

