// What a product with weights does with its sums: where they go and what is added, multiplied or
// rotated on the way. Tiles hold rows in the order that lets one thread have both rows that belong
// together, at places i and i + 8 of a tile.
//
// variant.cuh: EPILOGUE, ORDER, N_SEGMENTS, Segment0.., SCALED (whether products have a scale of their
// own), for the epilogue ADD: SCALE_BITS (the factor of what is added, a float32), and for the epilogue
// QKV: HEAD_DIM. And N_IN and what experts.cuh needs, for all products.
#pragma once
#include "weight_tile.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "experts.cuh"

// Whether two types are one: their code is shared then.
template <typename A, typename B>
constexpr bool SAME = false;
template <typename A>
constexpr bool SAME<A, A> = true;

constexpr uint32_t N_SB = (N_IN + TILE_COLS - 1) / TILE_COLS;
constexpr uint32_t N_PARTS = N_SB < 8 ? N_SB : 8;

constexpr bool IS_GATED = EPILOGUE == EPILOGUE_SWIGLU || EPILOGUE == EPILOGUE_GEGLU ||
                          EPILOGUE == EPILOGUE_CLAMPED_SWIGLU;

// 1, as a float32.
constexpr uint32_t ONE_BITS = 0x3f800000u;

constexpr bool ONE_TYPE =
    SAME<Segment0, Segment1> && SAME<Segment0, Segment2> && SAME<Segment0, Segment3>;

constexpr uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
// Bytes of a tile of any of the types.
constexpr uint32_t LARGEST_TILE =
    max_u32(max_u32(Segment0::TILE_BYTES, Segment1::TILE_BYTES),
            max_u32(Segment2::TILE_BYTES, Segment3::TILE_BYTES));

struct Segment {
    const uint8_t* weights;   // [N_EXPERT][tiles][N_SB], or of one matrix
    float* out;             // [m][rows]
    // Of the first and the second row of a pair, or null.
    const float* bias[2];   // [N_EXPERT][rows], or of one matrix
    const float* scale[2];  // [N_EXPERT], or one
    uint32_t tiles;
    uint32_t rows;
};

// By what the epilogue QKV rotates heads.
struct QkvRotation {
    const float* cos_sin;       // [n_ctx][HEAD_DIM / 2][cos, sin], of queries
    const float* key_cos_sin;   // the same of keys
    const uint32_t* positions;  // [m]
    uint32_t n_ctx;
    uint32_t unused;
};

// The position of row m, where the epilogue needs it.
DEVICE uint32_t position_of([[maybe_unused]] const QkvRotation& by, [[maybe_unused]] uint32_t m) {
    if constexpr (EPILOGUE == EPILOGUE_QKV) return load_relaxed_u32(by.positions + m);
    return 0;
}

// Which row of the matrix stands at place `at` of a tile: the epilogue combines places i and i + 8.
template <int order>
DEVICE uint32_t row_of(uint32_t tile, uint32_t at) {
    constexpr uint32_t PAIRS = TILE_ROWS / 2;
    if constexpr (order == ORDER_NEIGHBOURS) {
        return tile * TILE_ROWS + 2 * (at % PAIRS) + at / PAIRS;
    }
    if constexpr (order == ORDER_HALVES) {
        constexpr uint32_t tiles = HEAD_DIM / TILE_ROWS;
        return tile / tiles * HEAD_DIM + at / PAIRS * (HEAD_DIM / 2) + tile % tiles * PAIRS +
               at % PAIRS;
    }
    return tile * TILE_ROWS + at;
}

// What two rows of a pair are added to, where that was read before.
struct Before {
    bool is_known;
    float of[2];
};

DEVICE Before before_of(const Segment& segment, uint32_t tile, uint32_t at, uint32_t m) {
    Before before = {};
    if constexpr (EPILOGUE == EPILOGUE_ADD) {
        before.is_known = true;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = row_of<ORDER_NATURAL>(tile, at + 8 * i);
            if (row >= segment.rows) continue;
            before.of[i] =
                load_relaxed_f32(segment.out + static_cast<uint64_t>(m) * segment.rows + row);
        }
    }
    return before;
}

// Ends a pair of rows: places `at` and `at + 8` of a tile, `a` and `b` their sums.
DEVICE void finish(const Segment& segment, uint32_t expert, uint32_t tile, uint32_t at, uint32_t m,
                   float a, float b, [[maybe_unused]] const Before& before) {
    if constexpr (IS_GATED) {
        // Places 0..7 are rows of the gate, 8..15 the same rows of up.
        const uint32_t row = tile * 8 + at;
        if (row >= segment.rows) return;
        if (segment.bias[0]) a = add_rn(a, segment.bias[0][expert * segment.rows + row]);
        if (segment.bias[1]) b = add_rn(b, segment.bias[1][expert * segment.rows + row]);
        segment.out[static_cast<uint64_t>(m) * segment.rows + row] =
            EPILOGUE == EPILOGUE_GEGLU    ? geglu_f32(a, b)
            : EPILOGUE == EPILOGUE_SWIGLU ? swiglu_f32(a, b)
                                          : clamped_swiglu_f32(a, b);
        return;
    }
    uint32_t row[2] = {row_of<ORDER_NATURAL>(tile, at), row_of<ORDER_NATURAL>(tile, at + 8)};
    float v[2] = {a, b};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (row[i] >= segment.rows) continue;
        if (segment.bias[i]) v[i] = add_rn(v[i], segment.bias[i][expert * segment.rows + row[i]]);
        float* out = segment.out + static_cast<uint64_t>(m) * segment.rows + row[i];
        if (EPILOGUE == EPILOGUE_ADD && SCALE_BITS != ONE_BITS) {
            v[i] = mul_rn(v[i], u32_as_float(SCALE_BITS));
        }
        if constexpr (EPILOGUE == EPILOGUE_ADD) {
            v[i] = add_rn(before.is_known ? before.of[i] : load_relaxed_f32(out), v[i]);
        }
        *out = v[i];
    }
}

// The rotation of a pair of partners.
struct Rotation {
    float cosine, sine;
};

// The rotation that a pair of segment `number` needs; v's rows are not rotated.
DEVICE Rotation rotation_in([[maybe_unused]] const QkvRotation& by, int number,
                            [[maybe_unused]] uint32_t tile, [[maybe_unused]] uint32_t at,
                            [[maybe_unused]] uint32_t position) {
    Rotation rotation = {1.0f, 0.0f};
    if (EPILOGUE == EPILOGUE_QKV && number < 2) {
        uint32_t head_row = row_of<ORDER>(tile, at) % HEAD_DIM;
        uint32_t pair = ORDER == ORDER_HALVES ? head_row : head_row / 2;
        uint32_t known = position < by.n_ctx ? position : 0;
        const float* cos_sin = (number == 0 ? by.cos_sin : by.key_cos_sin) +
                               (static_cast<uint64_t>(known) * (HEAD_DIM / 2) + pair) * 2;
        rotation.cosine = cos_sin[0];
        rotation.sine = cos_sin[1];
    }
    return rotation;
}

// As finish, for the fused q, k and v: rotates q and k, stores all three.
template <int order>
DEVICE void finish_qkv(const Segment& segment, uint32_t tile, uint32_t at, uint32_t m, float a, float b,
                       const Rotation& rotation) {
    uint32_t row[2] = {row_of<order>(tile, at), row_of<order>(tile, at + 8)};
    float v[2] = {a, b};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (segment.bias[i] && row[i] < segment.rows) v[i] = add_rn(v[i], segment.bias[i][row[i]]);
    }
    if constexpr (order != ORDER_NATURAL) {
        float r0 = fma_rn(v[0], rotation.cosine, -mul_rn(v[1], rotation.sine));
        float r1 = fma_rn(v[0], rotation.sine, mul_rn(v[1], rotation.cosine));
        v[0] = r0, v[1] = r1;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (row[i] >= segment.rows) continue;
        segment.out[static_cast<uint64_t>(m) * segment.rows + row[i]] = v[i];
    }
}

// The end of a pair of rows of segment `number`, or of an expert's matrix there, whatever the epilogue
// is.
DEVICE void finish_pair(const Segment& segment, [[maybe_unused]] uint32_t expert,
                        [[maybe_unused]] int number, uint32_t tile, uint32_t at, uint32_t m, float a,
                        float b, [[maybe_unused]] const Rotation& rotation,
                        [[maybe_unused]] const Before& before = {}) {
    if constexpr (SCALED) {
        if (segment.scale[0]) a = mul_rn(a, segment.scale[0][expert]);
        if (segment.scale[1]) b = mul_rn(b, segment.scale[1][expert]);
    }
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (number == 2) {
            finish_qkv<ORDER_NATURAL>(segment, tile, at, m, a, b, rotation);
        } else {
            finish_qkv<ORDER>(segment, tile, at, m, a, b, rotation);
        }
    } else {
        finish(segment, expert, tile, at, m, a, b, before);
    }
}

// Calls f with the type and the segment of a tile, its number and the tile's place in it.
template <typename P, typename F>
DEVICE void with_segment(const P& p, uint32_t tile, F f) {
    if (N_SEGMENTS == 1 || tile < p.segment[0].tiles) {
        f(Segment0{}, p.segment[0], 0, tile);
        return;
    }
    tile -= p.segment[0].tiles;
    if (N_SEGMENTS == 2 || tile < p.segment[1].tiles) {
        f(Segment1{}, p.segment[1], 1, tile);
        return;
    }
    tile -= p.segment[1].tiles;
    if (N_SEGMENTS == 3 || tile < p.segment[2].tiles) {
        f(Segment2{}, p.segment[2], 2, tile);
        return;
    }
    f(Segment3{}, p.segment[3], 3, tile - p.segment[2].tiles);
}

// Calls f with the type of a tile; types that are alike share their code.
template <typename P, typename F>
DEVICE void with_type(const P& p, uint32_t tile, F f) {
    const uint32_t second = p.segment[0].tiles, third = second + p.segment[1].tiles;
    if constexpr (N_SEGMENTS > 1 && !SAME<Segment0, Segment1>) {
        if (tile >= second && (N_SEGMENTS == 2 || tile < third)) {
            f(Segment1{});
            return;
        }
    }
    if constexpr (N_SEGMENTS > 2 && !SAME<Segment0, Segment2>) {
        if (tile >= third && (N_SEGMENTS == 3 || tile < third + p.segment[2].tiles)) {
            f(Segment2{});
            return;
        }
    }
    if constexpr (N_SEGMENTS > 3 && !SAME<Segment0, Segment3>) {
        if (tile >= third + p.segment[2].tiles) {
            f(Segment3{});
            return;
        }
    }
    f(Segment0{});
}

// Tiles of all segments.
template <typename P>
DEVICE uint32_t all_tiles(const P& p) {
    uint32_t tiles = p.segment[0].tiles;
    if (N_SEGMENTS > 1) tiles += p.segment[1].tiles;
    if (N_SEGMENTS > 2) tiles += p.segment[2].tiles;
    if (N_SEGMENTS > 3) tiles += p.segment[3].tiles;
    return tiles;
}
