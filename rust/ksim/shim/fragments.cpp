// What tensor cores do with the registers of a warp.
namespace sim {

// The lanes' registers as matrices, multiplied in float32: for each element c, then the products
// in ascending k, each addition rounded to nearest.
static void multiply_fragments(Fiber* lanes) {
    uint32_t a[16][8], b[8][8];
    float c[16][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const Fragments& f = *reinterpret_cast<const Fragments*>(lanes[lane].in);
        uint32_t g = lane / 4, t = lane % 4;
        a[g][t] = f.a[0], a[g + 8][t] = f.a[1], a[g][t + 4] = f.a[2], a[g + 8][t + 4] = f.a[3];
        b[g][t] = f.b[0], b[g][t + 4] = f.b[1];
        c[g][2 * t] = f.c[0], c[g][2 * t + 1] = f.c[1];
        c[g + 8][2 * t] = f.c[2], c[g + 8][2 * t + 1] = f.c[3];
    }
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
        memcpy(&sum, c[row], 32);
        for (int half = 0; half < 2; half++) {
            H8 packed;
            memcpy(&packed, &a[row][4 * half], 16);
            F8 values = __builtin_ia32_vcvtph2ps256(packed);
            for (int k = 0; k < 8; k++) sum += values[k] * column[8 * half + k];
        }
        memcpy(c[row], &sum, 32);
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        const Fragments& f = *reinterpret_cast<const Fragments*>(lanes[lane].in);
        uint32_t g = lane / 4, t = lane % 4;
        f.d[0] = c[g][2 * t], f.d[1] = c[g][2 * t + 1];
        f.d[2] = c[g + 8][2 * t], f.d[3] = c[g + 8][2 * t + 1];
    }
}

// Bytes of rows of 32, as numbers.
static void widen(const uint32_t (*rows)[8], int count, bool is_signed, int32_t (*out)[32]) {
    for (int row = 0; row < count; row++) {
        uint8_t bytes[32];
        memcpy(bytes, rows[row], 32);
        for (int k = 0; k < 32; k++) {
            out[row][k] = is_signed ? static_cast<int8_t>(bytes[k]) : bytes[k];
        }
    }
}

// The lanes' registers as matrices of bytes, multiplied exactly; sums wrap around.
static void multiply_bytes(Fiber* lanes) {
    uint32_t a[16][8], b[8][8];
    int32_t x[16][32], y[8][32];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const auto& f = *reinterpret_cast<const ByteFragments*>(lanes[lane].in);
        uint32_t g = lane / 4, t = lane % 4;
        a[g][t] = f.a[0], a[g + 8][t] = f.a[1], a[g][t + 4] = f.a[2], a[g + 8][t + 4] = f.a[3];
        b[g][t] = f.b[0], b[g][t + 4] = f.b[1];
    }
    widen(a, 16, lanes[0].operand & 1, x);
    widen(b, 8, lanes[0].operand & 2, y);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const auto& f = *reinterpret_cast<const ByteFragments*>(lanes[lane].in);
        uint32_t g = lane / 4, t = lane % 4;
        int32_t sums[4];
        for (uint32_t i = 0; i < 4; i++) {
            int32_t dot = 0;
            for (int k = 0; k < 32; k++) dot += x[g + i / 2 * 8][k] * y[2 * t + i % 2][k];
            sums[i] = static_cast<int32_t>(static_cast<uint32_t>(f.c[i]) + static_cast<uint32_t>(dot));
        }
        memcpy(f.d, sums, sizeof sums);
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
