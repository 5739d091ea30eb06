// ln and exp by fused multiply-adds, the same bits as rust/engine/src/sampler/math.rs, and what is made
// of them.
#pragma once
#include "common.cuh"

constexpr float LN2_HI = 0.6933594f;
constexpr float LN2_LO = -2.1219444e-4f;

// ln(1 + f) for 1 + f in [sqrt 1/2, sqrt 2).
DEVICE float ln_1p_reduced(float f) {
    float p = 6.74629e-2f;
    p = fma_rn(f, p, -1.1675931e-1f);
    p = fma_rn(f, p, 1.1888468e-1f);
    p = fma_rn(f, p, -1.2405556e-1f);
    p = fma_rn(f, p, 1.4219505e-1f);
    p = fma_rn(f, p, -1.6667996e-1f);
    p = fma_rn(f, p, 2.000212e-1f);
    p = fma_rn(f, p, -2.500001e-1f);
    p = fma_rn(f, p, 3.3333313e-1f);
    float t = fma_rn(f, p, -0.5f);
    return fma_rn(mul_rn(f, f), t, f);
}

DEVICE float ln_f32(float x) {
    constexpr uint32_t SQRT_HALF = 0x3f3504f3u, ONE = 0x3f800000u;
    uint32_t bits = float_as_u32(x) + (ONE - SQRT_HALF);
    float k = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
    float m = u32_as_float((bits & 0x007fffffu) + SQRT_HALF);
    float y = fma_rn(k, LN2_LO, ln_1p_reduced(sub_rn(m, 1.0f)));
    return fma_rn(k, LN2_HI, y);
}

// exp(z) for z in [-87, 0].
DEVICE float exp_f32(float z) {
    constexpr float LOG2_E = 1.44269504088896340736f, ROUND = 12582912.0f;
    float n = sub_rn(fma_rn(z, LOG2_E, ROUND), ROUND);
    float r = fma_rn(n, -LN2_HI, z);
    r = fma_rn(n, -LN2_LO, r);
    float p = 1.3814602e-3f;
    p = fma_rn(r, p, 8.368723e-3f);
    p = fma_rn(r, p, 4.166839e-2f);
    p = fma_rn(r, p, 1.6666521e-1f);
    p = fma_rn(r, p, 4.9999994e-1f);
    float y = add_rn(fma_rn(mul_rn(r, r), p, r), 1.0f);
    return mul_rn(y, u32_as_float(static_cast<uint32_t>((static_cast<int32_t>(n) + 127) << 23)));
}

// exp(z) for z <= 0, zero where that is below every normal float.
DEVICE float exp_down_f32(float z) { return z < -87.0f ? 0.0f : exp_f32(z); }

// 1 / (1 + exp(-z)), as the ops say.
DEVICE float sigmoid_f32(float z) {
    const float e = exp_down_f32(-fabsf(z));
    const float top = z < 0.0f ? e : 1.0f;
    return div_rn(top, add_rn(1.0f, e));
}

// The same of finite z, and NaN of infinite ones: 0 or 1 would hide them.
DEVICE float finite_sigmoid_f32(float z) { return add_rn(sigmoid_f32(z), sub_rn(z, z)); }

// gate / (1 + exp(-gate)) * up.
DEVICE float swiglu_f32(float gate, float up) {
    return mul_rn(mul_rn(gate, sigmoid_f32(gate)), up);
}

// gelu(gate) * up, gelu by tanh.
DEVICE float geglu_f32(float gate, float up) {
    // sqrt(8 / pi), and that times 0.044715.
    constexpr float A = 1.5957692f, B = 0.071354814f;
    const float z = mul_rn(gate, fma_rn(mul_rn(gate, gate), B, A));
    return mul_rn(mul_rn(gate, sigmoid_f32(z)), up);
}

// g sigmoid(1.702 g) (u + 1), of a gate of at most 7 and u from -7 to 7; NaN where one is not finite.
DEVICE float clamped_swiglu_f32(float gate, float up) {
    const float g = gate > 7.0f ? 7.0f : gate;
    const float u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    const float nothing = add_rn(sub_rn(gate, gate), sub_rn(up, up));
    return mul_rn(mul_rn(g, sigmoid_f32(mul_rn(1.702f, g))), add_rn(add_rn(u, nothing), 1.0f));
}

// cap tanh(x / cap), with a rate of 2 / cap; NaN of what is infinite.
DEVICE float soft_cap_f32(float x, float cap, float rate) {
    const float e = exp_down_f32(-mul_rn(fabsf(x), rate));
    const float y = add_rn(mul_rn(cap, div_rn(sub_rn(1.0f, e), add_rn(1.0f, e))), sub_rn(x, x));
    return x < 0.0f ? -y : y;
}

// ln(1 + exp(z)); NaN of an infinite z.
DEVICE float softplus_f32(float z) {
    const float e = exp_down_f32(-fabsf(z));
    const float log = e < 0.4f ? ln_1p_reduced(e) : ln_f32(add_rn(1.0f, e));
    return add_rn(add_rn(z > 0.0f ? z : 0.0f, log), sub_rn(z, z));
}

// exp(a ln(1 + exp(z))), where that is at most 1: how much of a state stays. NaN of an infinite z.
DEVICE float decay_f32(float a, float z) {
    const float exponent = mul_rn(a, softplus_f32(z));
    return exponent > 0.0f ? 1.0f : exp_down_f32(exponent);
}

// 2^(64 z - 64) for z in [0, 1].
DEVICE float exp2_unit_f32(float z) {
    // 1.5 * 2^17: the sum's last place is 1/64.
    constexpr float ROUND = 196608.0f;
    const float r = add_rn(z, ROUND);
    const float g = sub_rn(z, sub_rn(r, ROUND));
    float p = 7.7210916e-14f;
    p = fma_rn(g, p, 8.796061e-15f);
    p = fma_rn(g, p, 7.888046e-16f);
    p = fma_rn(g, p, 5.3340097e-17f);
    p = fma_rn(g, p, 2.4048368e-18f);
    p = fma_rn(g, p, 5.421011e-20f);
    // Its low bits are 64 times z rounded, which the shift leaves in the place of exponents.
    return u32_as_float(float_as_u32(p) + (float_as_u32(r) << 23));
}
