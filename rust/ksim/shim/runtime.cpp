// What every kernel object has of the simulator beside its own code. It is compiled once and linked to
// each: compiling it takes longer than most kernels do.
#include "ksim.h"

#include <stdarg.h>

uint3 threadIdx;
uint3 blockIdx;
uint3 blockDim;
uint3 gridDim;

#include "fiber.cpp"
#include "warp.cpp"
#include "fragments.cpp"
#include "products.cpp"
#include "grid.cpp"
#include "copies.cpp"

KSIM_EXPORT ksim_object ksim_object_info = {
    KSIM_ABI, 0, sim::open_grid, sim::release_grid, sim::advance_grid, sim::close_grid, sim::fault};
__attribute__((constructor)) static void ksim_fill_object() {
    ksim_object_info.static_shared_bytes = static_cast<uint32_t>(sim::static_shared_bytes());
}
