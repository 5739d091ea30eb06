// Of each head the row of a table that a hash of a sequence's last tokens chooses, from the tiles of a matrix of
// which a row is N_IN / WIDTH of the table's. A block a head of a row.
//
// variant.cuh: N_IN, WIDTH, TOKENS (of the longest n-grams), HEADS, Segment0.
#include "weight_tile.cuh"
#include "variant.cuh"
#include "expand.cuh"

constexpr uint32_t PER_LENGTH = HEADS / (TOKENS - 1);
constexpr uint32_t MOST_TOKENS = 8;
constexpr uint32_t MOST_HEADS = 64;

struct Params {
    const uint8_t* weights;
    const float* recent;  // [m][TOKENS], numbers of tokens, the newest first; 0: none
    float* out;           // [m][HEADS][WIDTH]
    uint64_t eos;
    uint64_t multipliers[MOST_TOKENS];
    uint64_t offsets[MOST_HEADS];
    uint64_t sizes[MOST_HEADS];
};

KERNEL(ngram_rows, Params) {
    using T = Segment0;
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t head = blockIdx.x, m = blockIdx.y;
    const float* recent = p.recent + static_cast<uint64_t>(m) * TOKENS;
    uint64_t mixed = 0;
    bool is_cut = false;
#pragma unroll
    for (uint32_t j = 0; j < TOKENS; j++) {
        if (j >= 2 + head / PER_LENGTH) break;
        const float number = load_relaxed_f32(recent + j);
        uint64_t token = static_cast<uint64_t>(number) - 1;
        is_cut = is_cut || (j > 0 && (number < 1.0f || token == p.eos));
        token = is_cut ? p.eos : token;
        mixed ^= token * p.multipliers[j];
    }
    const uint64_t row = p.offsets[head] + mixed % p.sizes[head];
    const uint64_t stored = row / (N_IN / WIDTH);
    const uint32_t first = static_cast<uint32_t>(row % (N_IN / WIDTH)) * WIDTH;
    const uint8_t* weights = p.weights + stored / TILE_ROWS * N_SB * T::TILE_BYTES;
    float* out = p.out + (static_cast<uint64_t>(m) * HEADS + head) * WIDTH;
    const uint32_t in_tile = static_cast<uint32_t>(stored % TILE_ROWS);
    if constexpr (T::INTEGERS) {
        expand_integers<T>(weights, in_tile, 1.0f, out, first, WIDTH);
    } else {
        expand_floats<T>(weights, in_tile, 1.0f, out, first, WIDTH);
    }
}
