// out[r] = weight[tokens[r]] * scale, from the tiles that the LM head reads too. A block a row.
//
// With `state`, the row is a sequence that decodes: its token and position come from there, and
// position and slot go to where the step's other kernels read them. A sequence that has ended is a
// padding row: nothing of it is stored.
//
// variant.cuh: N_IN, Segment0.
#include "weight_tile.cuh"
#include "kv.cuh"
#include "state.cuh"
#include "variant.cuh"

struct Params {
    const uint8_t* weights;
    float* out;  // [m][N_IN]
    uint32_t* tokens;
    uint32_t* positions;
    uint32_t* slots;
    const SlotState* state;        // or null
    const uint32_t* state_slots;   // [m], which state each row has
    uint32_t n_rows;               // of the table
    float scale;
};

constexpr uint32_t N_SB = (N_IN + TILE_COLS - 1) / TILE_COLS;

// Row r of a row of tiles, integers: four lanes for every 64 columns.
template <typename T>
DEVICE void expand_integers(const uint8_t* weights, uint32_t r, float factor, float* out) {
    constexpr uint32_t EACH = 64 / T::SUB;  // sub-blocks of a quarter
    for (uint32_t i = threadIdx.x; i < N_SB * 16; i += blockDim.x) {
        const uint32_t sb = i / 16, v = i / 4 % 4, q = i % 4;
        const uint8_t* tile = weights + sb * T::TILE_BYTES;
        const auto quants = T::load(tile, r % 8 * 4 + q, v);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t sub = 2 * v + n / 2, h = n % 2;
            uint32_t a[4];
            T::fragment(quants, n / 2, n % 2, a);
            const uint32_t j = T::SUB == 16 ? 2 * sub + h : sub;
            const auto quarter = T::quarter(tile, r, j / EACH);
            const float scale = T::scale(quarter, j % EACH);
            float offset = 0.0f;
            if constexpr (T::OFFSETS == OWN_OFFSETS) offset = T::offset(quarter, j % EACH);
            if constexpr (T::OFFSETS == SHARED_OFFSETS) {
                const float m = byte_f32(T::mins(tile, r, j / EACH), j % EACH);
                offset = -mul_rn(T::dmin(tile, r), m);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                // A's halves are subnormals: weight_tile.cuh.
                const uint32_t pair = r < 8 ? a[e / 2 * 2] : a[e / 2 * 2 + 1];
                const float integer =
                    mul_rn(half_of(pair, e % 2), e < 2 ? 16777216.0f : 1048576.0f);
                const uint32_t k = sb * TILE_COLS + sub * 32 + column_of(h, q, e);
                if (k >= N_IN) continue;
                // A sum with 0 would lose the sign of a zero.
                const bool alone = T::OFFSETS == NO_OFFSETS;
                const float w = alone ? mul_rn(scale, integer) : fma_rn(scale, integer, offset);
                out[k] = mul_rn(w, factor);
            }
        }
    }
}

template <typename T>
DEVICE void expand_floats(const uint8_t* weights, uint32_t r, float factor, float* out) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t sb = threadIdx.x / 32; sb < N_SB; sb += blockDim.x / 32) {
        float w[8];
        T::load(weights + sb * T::TILE_BYTES, lane, r, w);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t k = sb * TILE_COLS + lane + 32 * i;
            if (k < N_IN) out[k] = mul_rn(w[i], factor);
        }
    }
}

KERNEL(embed, Params) {
    using T = Segment0;
    const uint32_t m = blockIdx.x;
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t token;
    if (p.state) {
        const uint32_t slot = load_relaxed_u32(p.state_slots + m);
        const SlotState* state = p.state + slot;
        const bool live = load_relaxed_u32(&state->live) != 0;
        token = live ? load_relaxed_u32(&state->token) : 0;
        if (threadIdx.x == 0) {
            p.positions[m] = live ? load_relaxed_u32(&state->position) : 0;
            p.slots[m] = live ? slot : PADDING_SLOT;
        }
    } else {
        token = load_relaxed_u32(p.tokens + m);
    }
    if (token >= p.n_rows) token = 0;  // the host refuses such tokens
    const uint64_t tile = token / TILE_ROWS;
    const uint8_t* weights = p.weights + tile * N_SB * T::TILE_BYTES;
    float* out = p.out + static_cast<uint64_t>(m) * N_IN;
    if constexpr (T::INTEGERS) {
        expand_integers<T>(weights, token % TILE_ROWS, p.scale, out);
    } else {
        expand_floats<T>(weights, token % TILE_ROWS, p.scale, out);
    }
    STAMP(STAMP_ENDED);
}
