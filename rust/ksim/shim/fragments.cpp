// What tensor cores do with the registers of a warp.
namespace sim {

typedef short H16 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));

// A lane's words of A, 16 rows of 32 bytes.
static inline void put_a(uint32_t (*a)[8], uint32_t lane, const uint32_t* words) {
    const uint32_t g = lane / 4, t = lane % 4;
    a[g][t] = words[0], a[g + 8][t] = words[1], a[g][t + 4] = words[2], a[g + 8][t + 4] = words[3];
}

// The lane's number `e` of C, 16 rows of eight or more.
static inline uint32_t& at_c(uint32_t* c, uint32_t stride, uint32_t lane, uint32_t e) {
    return c[(lane / 4 + e / 2 * 8) * stride + lane % 4 * 2 + e % 2];
}

// A and B, eight columns of 32 bytes, as matrices of halves, multiplied in float32: for each element c,
// then the products in ascending k, each addition rounded to nearest.
static void multiply_halves(const uint32_t (*a)[8], const uint32_t (*b)[8], uint32_t* c, uint32_t stride) {
    float columns[16][8];
    for (int n = 0; n < 8; n++) {
        for (int half = 0; half < 2; half++) {
            H8 packed;
            memcpy(&packed, &b[n][4 * half], 16);
            F8 values = __builtin_ia32_vcvtph2ps256(packed);
            for (int k = 0; k < 8; k++) columns[8 * half + k][n] = values[k];
        }
    }
    F8 column[16];
    memcpy(column, columns, sizeof column);
    for (int row = 0; row < 16; row++) {
        F8 sum;
        memcpy(&sum, c + row * stride, 32);
        for (int half = 0; half < 2; half++) {
            H8 packed;
            memcpy(&packed, &a[row][4 * half], 16);
            F8 values = __builtin_ia32_vcvtph2ps256(packed);
            for (int k = 0; k < 8; k++) sum += values[k] * column[8 * half + k];
        }
        memcpy(c + row * stride, &sum, 32);
    }
}

// Two bytes of each word as two numbers of 16 bits.
static inline uint32_t widen(uint32_t two, bool is_signed) {
    const uint32_t low = is_signed ? static_cast<uint16_t>(static_cast<int8_t>(two)) : two & 0xff;
    const uint32_t high = is_signed ? static_cast<uint16_t>(static_cast<int8_t>(two >> 8)) : two >> 8 & 0xff;
    return low | high << 16;
}

// The same as matrices of bytes, multiplied exactly; sums wrap around.
static void multiply_bytes(const uint32_t (*a)[8], const uint32_t (*b)[8], uint32_t type, uint32_t* c,
                           uint32_t stride) {
    uint32_t pairs[16][8];
    for (int n = 0; n < 8; n++) {
        for (int k = 0; k < 16; k++) pairs[k][n] = widen(b[n][k / 2] >> 16 * (k % 2), type & B_SIGNED);
    }
    U8 column[16];
    memcpy(column, pairs, sizeof column);
    for (int row = 0; row < 16; row++) {
        U8 sum;
        memcpy(&sum, c + row * stride, 32);
        for (int k = 0; k < 16; k++) {
            const U8 pair = U8{} + widen(a[row][k / 2] >> 16 * (k % 2), type & A_SIGNED);
            sum += reinterpret_cast<U8>(__builtin_ia32_pmaddwd256(reinterpret_cast<H16>(pair),
                                                                  reinterpret_cast<H16>(column[k])));
        }
        memcpy(c + row * stride, &sum, 32);
    }
}

static void multiply(const uint32_t (*a)[8], const uint32_t (*b)[8], uint32_t type, uint32_t* c,
                     uint32_t stride) {
    if (type == HALVES) {
        multiply_halves(a, b, c, stride);
    } else {
        multiply_bytes(a, b, type, c, stride);
    }
}

// The lanes' registers as matrices.
static void multiply_fragments(Fiber* lanes) {
    uint32_t a[16][8], b[8][8], c[16][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const Fragments& f = *reinterpret_cast<const Fragments*>(lanes[lane].in);
        put_a(a, lane, f.a);
        b[lane / 4][lane % 4] = f.b[0], b[lane / 4][lane % 4 + 4] = f.b[1];
        for (uint32_t e = 0; e < 4; e++) {
            at_c(*c, 8, lane, e) = static_cast<const uint32_t*>(f.c)[e];
        }
    }
    multiply(a, b, static_cast<uint32_t>(lanes[0].operand), *c, 8);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const Fragments& f = *reinterpret_cast<const Fragments*>(lanes[lane].in);
        for (uint32_t e = 0; e < 4; e++) {
            static_cast<uint32_t*>(f.d)[e] = at_c(*c, 8, lane, e);
        }
    }
}

static void load_matrices(Fiber* lanes, bool transposed) {
    for (uint32_t matrix = 0; matrix < 4; matrix++) {
        uint16_t values[8][8];
        for (uint32_t row = 0; row < 8; row++) {
            memcpy(values[row], reinterpret_cast<void*>(lanes[8 * matrix + row].operand), 16);
        }
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint32_t row = lane / 4, column = 2 * (lane % 4);
            uint32_t low = transposed ? values[column][row] : values[row][column];
            uint32_t high = transposed ? values[column + 1][row] : values[row][column + 1];
            reinterpret_cast<uint32_t*>(lanes[lane].in)[matrix] = low | (high << 16);
        }
    }
}

}  // namespace sim
