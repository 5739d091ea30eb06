// Element by element: residual sums, gates, activations, factors, rows of tables, slices, rows side by side, and picking rows.
#include "math.cuh"

// Calls f with each number below n, of the grid's threads in turn.
template <class F>
DEVICE void each(uint64_t n, F f) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += stride) {
        f(i);
    }
}

struct AddParams {
    const float* x;
    float* out;
    uint64_t n;
};

// out += x.
KERNEL(add, AddParams) {
    each(p.n, [&](uint64_t i) {
        p.out[i] = add_rn(load_relaxed_f32(p.out + i), load_relaxed_f32(p.x + i));
    });
}

struct GluParams {
    const float* gate;
    const float* up;
    float* out;
    uint64_t n;
    uint64_t share;
};

// out = gate / (1 + exp(-gate)) * up; gelu(gate) * up; gate sigmoid(1.702 gate) (up + 1), of clamped
// numbers.
#define GLU(name, f)                                                                   \
    KERNEL(name, GluParams) {                                                          \
        each(p.n, [&](uint64_t i) {                                                    \
            p.out[i] = f(load_relaxed_f32(p.gate + i), load_relaxed_f32(p.up + i));    \
        });                                                                            \
    }
GLU(swiglu, swiglu_f32)
GLU(geglu, geglu_f32)
GLU(clamped_swiglu, clamped_swiglu_f32)

// out = up / (1 + exp(-gate)); up ln(1 + exp(gate)); a number of the gate for `share` values each.
#define GATE(name, f)                                                                  \
    KERNEL(name, GluParams) {                                                          \
        each(p.n, [&](uint64_t i) {                                                    \
            const float gate = load_relaxed_f32(p.gate + (p.share == 1 ? i : i / p.share)); \
            p.out[i] = mul_rn(load_relaxed_f32(p.up + i), f(gate));                    \
        });                                                                            \
    }
GATE(sigmoid_mul, finite_sigmoid_f32)
GATE(softplus_mul, softplus_f32)

struct ScaleParams {
    float* x;
    uint64_t n;
    float factor;
    uint32_t unused;
};

// x *= factor.
KERNEL(scale, ScaleParams) {
    each(p.n, [&](uint64_t i) {
        p.x[i] = mul_rn(load_relaxed_f32(p.x + i), p.factor);
    });
}

struct ScaleByParams {
    float* x;
    uint64_t n;
    const float* factor;  // one number
};

// x *= factor.
KERNEL(scale_by, ScaleByParams) {
    each(p.n, [&](uint64_t i) {
        p.x[i] = mul_rn(load_relaxed_f32(p.x + i), *p.factor);
    });
}

struct ScaleRanksParams {
    float* routes;        // [rows][2][ranks]: ids, then weights
    const float* scales;  // [n_expert]
    uint64_t n;           // ranks of all rows
    uint32_t ranks;
    uint32_t n_expert;
};

// weight *= scales[id].
KERNEL(scale_ranks, ScaleRanksParams) {
    each(p.n, [&](uint64_t i) {
        float* at = p.routes + i / p.ranks * 2 * p.ranks + i % p.ranks;
        const float id = load_relaxed_f32(at);
        const bool is_one = id >= 0.0f && id < static_cast<float>(p.n_expert);
        const float scale = p.scales[is_one ? static_cast<uint32_t>(id) : 0];
        at[p.ranks] = mul_rn(load_relaxed_f32(at + p.ranks), scale);
    });
}

struct SoftCapParams {
    float* x;
    uint64_t n;
    float cap;
    float rate;  // 2 / cap
};

// x = cap tanh(x / cap).
KERNEL(soft_cap, SoftCapParams) {
    each(p.n, [&](uint64_t i) {
        p.x[i] = soft_cap_f32(load_relaxed_f32(p.x + i), p.cap, p.rate);
    });
}

struct GeluParams {
    float* x;
    uint64_t n;
};

// x Phi(x), Phi the normal distribution: gelu_tail of rust/engine/src/sampler/math.rs.
DEVICE float gelu_f32(float x) {
    const float b = fabsf(x);
    const float t = div_rn(1.0f, fma_rn(0.3f, b, 1.0f));
    float q = 3.6036685e-2f;
    q = fma_rn(t, q, -1.5871531e-1f);
    q = fma_rn(t, q, 2.0896767e-1f);
    q = fma_rn(t, q, -5.60989e-2f);
    q = fma_rn(t, q, 1.298451e-1f);
    q = fma_rn(t, q, 9.952253e-2f);
    q = fma_rn(t, q, 1.2081698e-1f);
    q = fma_rn(t, q, 1.19625166e-1f);
    const float tail = mul_rn(mul_rn(t, q), exp_down_f32(mul_rn(mul_rn(b, b), -0.5f)));
    return x < 0.0f ? mul_rn(x, tail) : fma_rn(-x, tail, x);
}

// x = gelu(x).
KERNEL(gelu, GeluParams) {
    each(p.n, [&](uint64_t i) { p.x[i] = gelu_f32(load_relaxed_f32(p.x + i)); });
}

// x = max(x, 0)^2; NaN of what is infinite.
KERNEL(relu_squared, GeluParams) {
    each(p.n, [&](uint64_t i) {
        const float x = load_relaxed_f32(p.x + i);
        const float y = x > 0.0f ? x : 0.0f;
        p.x[i] = add_rn(mul_rn(y, y), sub_rn(x, x));
    });
}

struct AddRowParams {
    float* x;
    const float* table;         // [n_rows][width]
    const uint32_t* positions;  // [n / width], or null: the first row
    uint64_t n;
    uint32_t width;
    uint32_t n_rows;
};

// x += table[positions], or NaN behind the table's end.
KERNEL(add_row, AddRowParams) {
    each(p.n, [&](uint64_t i) {
        const uint32_t row = p.positions ? load_relaxed_u32(p.positions + i / p.width) : 0;
        const uint64_t at = static_cast<uint64_t>(row) * p.width + i % p.width;
        p.x[i] = row < p.n_rows ? add_rn(load_relaxed_f32(p.x + i), p.table[at]) : nan_f32();
    });
}

struct SliceParams {
    const float* x;
    float* out;
    uint64_t n;
    uint32_t width;
    uint32_t first;
    uint32_t of;
    uint32_t unused;
};

// Of parts of `of` values those from `first` on, `width` of each.
KERNEL(slice, SliceParams) {
    each(p.n, [&](uint64_t i) {
        p.out[i] = load_relaxed_f32(p.x + i / p.width * p.of + p.first + i % p.width);
    });
}

struct ConcatParams {
    const float* x;
    const float* y;
    float* out;
    uint64_t n;
    uint32_t width;
    uint32_t unused;
};

// A row of x, then the same row of y.
KERNEL(concat, ConcatParams) {
    each(p.n, [&](uint64_t i) {
        uint64_t row = i / (2 * p.width), column = i % (2 * p.width);
        const float* from = column < p.width ? p.x : p.y;
        p.out[i] = load_relaxed_f32(from + row * p.width + column % p.width);
    });
}

struct SelectParams {
    const float* x;
    float* out;
    const uint32_t* rows;
    uint32_t width;
    uint32_t unused;
};

// out[i] = x[rows[i]]; a block a row.
KERNEL(select_rows, SelectParams) {
    pdl_wait();
    pdl_trigger();
    uint64_t from = static_cast<uint64_t>(load_relaxed_u32(p.rows + blockIdx.x)) * p.width;
    uint64_t to = static_cast<uint64_t>(blockIdx.x) * p.width;
    delay_block();
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        p.out[to + i] = load_relaxed_f32(p.x + from + i);
    }
}
