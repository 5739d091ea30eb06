// Force-included before every kernel source: CUDA C++ for g++. Thread blocks are fibers of one OS
// thread (fiber.h), grids start, wait for each other and end (grid.h), warp operations are meetings of fibers (warp.h), device arithmetic is host
// arithmetic without contraction (numerics.h).
#pragma once
#define ONEGRAPH_SIM 1

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "abi.h"
#include "types.h"
#include "fiber.h"
#include "warp.h"
#include "grid.h"
#include "numerics.h"
#include "copies.h"
#include "builtins.h"

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

KSIM_EXPORT ksim_object ksim_object_info = {
    KSIM_ABI, 0, sim::open_grid, sim::release_grid, sim::advance_grid, sim::close_grid, sim::fault};
__attribute__((constructor)) static void ksim_fill_object() {
    ksim_object_info.static_shared_bytes = static_cast<uint32_t>(sim::static_shared_bytes());
}
