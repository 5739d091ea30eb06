// Integers that a table makes of codes of four bits. A lane's eight codes of a step are one word, so
// placed that byte permutes read table and halves from them, either ROW_HALVES: row g in the lower half,
// row g + 8 in the upper one, columns 2q, 2q + 1, 2q + 8, 2q + 9 in order; or COLUMN_HALVES: 2q and 2q + 1
// in the lower half, 2q + 8 and 2q + 9 in the upper one, in either nibbles 1 and 3 row g's, 0 and 2 row
// g + 8's.
//
// Quants [4 vectors][32 lanes][16 bytes].
#pragma once
#include "weight_tile.cuh"

enum CodeOrder { ROW_HALVES, COLUMN_HALVES };

template <CodeOrder ORDER>
struct Codes {
    static constexpr bool INTEGERS = true;
    static constexpr int ABOVE = 0;
    static constexpr uint32_t QUANT_BYTES = 2048;

    struct Quants {
        uint32_t w[4];
    };

    DEVICE Quants load(const uint8_t* tile, uint32_t lane, uint32_t v) {
        const uint4 x = *reinterpret_cast<const uint4*>(tile + v * 512 + lane * 16);
        return {{x.x, x.y, x.z, x.w}};
    }

    // Stores code(r, c), that of row r and column c of the tile.
    template <typename F>
    DEVICE void pack(uint8_t* tile, uint32_t lane, F code) {
        const uint32_t g = lane / 4, q = lane % 4;
        for (uint32_t v = 0; v < 4; v++) {
            for (uint32_t n = 0; n < 4; n++) {
                uint32_t word = 0;
                for (uint32_t r = 0; r < 2; r++) {
                    for (uint32_t e = 0; e < 4; e++) {
                        const uint32_t column = (2 * v + n / 2) * 32 + column_of(n % 2, q, e);
                        const uint32_t nibble =
                            ORDER == ROW_HALVES ? 4 * r + e : e / 2 * 4 + e % 2 * 2 + 1 - r;
                        word |= code(g + 8 * r, column) << (4 * nibble);
                    }
                }
                reinterpret_cast<uint32_t*>(tile + v * 512 + lane * 16)[n] = word;
            }
        }
    }
};
