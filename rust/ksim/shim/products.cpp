// Products of warpgroups: see products.h.
namespace sim {

// NaN as a float32, a large number as an integer.
constexpr uint32_t POISON = 0x7fbadbad;
// The widest has 128 columns.
constexpr uint32_t MAX_CHUNKS = 16;

// One that a warp has issued.
struct Product {
    ProductShape shape;
    // Each lane's registers.
    uint32_t* d[32];
    const uint32_t* a_at[32];
    // What they and B held when it was issued.
    uint32_t a[32][4];
    uint32_t b[MAX_CHUNKS][8][8];
    uint32_t c[16][8 * MAX_CHUNKS];
};

// Eight columns of B.
static void read_b(const ProductShape& shape, uint32_t chunk, uint32_t (*to)[8]) {
    const unsigned char* from = shape.b + chunk * shape.column_stride;
    for (uint32_t n = 0; n < 8; n++) {
        memcpy(to[n], from + n * 16, 16);
        memcpy(to[n] + 4, from + shape.row_stride + n * 16, 16);
    }
}

static bool is_poison(const uint32_t* d, uint32_t chunks) {
    bool is = true;
    for (uint32_t i = 0; i < 4 * chunks; i++) is &= d[i] == POISON;
    return is;
}

// Behind the others of the queue, as the first lane that comes there issues it.
static Product& add_product(Products& of, const ProductShape& shape) {
    if (of.count == of.room) {
        of.queue = static_cast<Product**>(realloc(of.queue, (of.room + 1) * sizeof(Product*)));
        of.queue[of.room++] = static_cast<Product*>(malloc(sizeof(Product)));
    }
    Product& product = *of.queue[of.count++];
    product.shape = shape;
    if (reinterpret_cast<uintptr_t>(shape.b) % 16 || shape.column_stride % 16 || shape.row_stride % 16) {
        fail(KSIM_MISALIGNED_ADDRESS, "wgmma of B at %p, strides of %u and %u bytes", shape.b,
             shape.column_stride, shape.row_stride);
    }
    check_shared("wgmma", shape.b, (shape.chunks - 1) * shape.column_stride + shape.row_stride + 128);
    for (uint32_t j = 0; j < shape.chunks; j++) read_b(shape, j, product.b[j]);
    memset(product.c, 0, sizeof product.c);
    uint64_t words[sizeof(ProductShape) / 8];
    memcpy(words, &shape, sizeof words);
    for (uint64_t word : words) of.issued = (of.issued ^ word) * 0x9e3779b97f4a7c15ull;
    return product;
}

void wgmma(void* d, const uint32_t* a, ProductShape shape) {
    Products& of = block->products[self->linear / 32];
    const uint32_t lane = self->linear % 32, index = self->product_count++ - of.ended;
    if (!self->fenced) fail(KSIM_LAUNCH_FAILED, "wgmma of a group that has no wgmma_fence()");
    shape.group = self->product_group;
    Product& product = index < of.count ? *of.queue[index] : add_product(of, shape);
    if (memcmp(&product.shape, &shape, sizeof shape) != 0) {
        fail(KSIM_LAUNCH_FAILED, "wgmma of B at %p in group %u, where other lanes have %p in group %u",
             shape.b, shape.group, product.shape.b, product.shape.group);
    }
    product.a_at[lane] = a;
    memcpy(product.a[lane], a, 16);
    uint32_t* registers = product.d[lane] = static_cast<uint32_t*>(d);
    for (uint32_t i = index; i-- > 0;) {
        if (of.queue[i]->d[lane] != registers) continue;
        // That one leaves its sums to this one.
        if (is_poison(registers, shape.chunks)) return;
        fail(KSIM_LAUNCH_FAILED, "registers of a product under way were written before its wgmma_wait()");
    }
    for (uint32_t i = 0; i < 4 * shape.chunks; i++) {
        if (shape.adds) at_c(*product.c + i / 4 * 8, 8 * MAX_CHUNKS, lane, i % 4) = registers[i];
        registers[i] = POISON;
    }
}

void wgmma_wait(uint32_t pending) {
    self->fenced = false;
    self->operand = pending;
    block->products[self->linear / 32].waiting |= 1u << (self->linear % 32);
    wait_as(AT_PRODUCTS);
}

// Multiplies, and gives C to the next in the queue that has the same registers, or to the registers.
static void run_product(const Products& of, uint32_t index, uint32_t warp) {
    Product& product = *of.queue[index];
    const ProductShape& shape = product.shape;
    uint32_t a[16][8], b[8][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (memcmp(product.a_at[lane], product.a[lane], 16) != 0) {
            record(KSIM_LAUNCH_FAILED,
                   "warp %u: registers of A of a product under way were written before its wgmma_wait()", warp);
        }
        put_a(a, lane, product.a[lane]);
    }
    for (uint32_t j = 0; j < shape.chunks; j++) {
        read_b(shape, j, b);
        if (memcmp(b, product.b[j], sizeof b) != 0) {
            record(KSIM_LAUNCH_FAILED,
                   "warp %u: shared memory at %p changed under a product: it was not there yet when the "
                   "product was issued, or was overwritten before its wgmma_wait()",
                   warp, shape.b + j * shape.column_stride);
        }
        multiply(a, b, shape.type, *product.c + 8 * j, 8 * MAX_CHUNKS);
    }
    for (uint32_t i = index + 1; i < of.count; i++) {
        if (of.queue[i]->d[0] != product.d[0]) continue;
        if (of.queue[i]->shape.adds) memcpy(of.queue[i]->c, product.c, sizeof product.c);
        return;
    }
    for (uint32_t lane = 0; lane < 32 && !error; lane++) {
        uint32_t* d = product.d[lane];
        if (!is_poison(d, shape.chunks)) {
            record(KSIM_LAUNCH_FAILED,
                   "warp %u: registers of a product under way were written before its wgmma_wait()", warp);
        }
        for (uint32_t i = 0; i < 4 * shape.chunks; i++) {
            d[i] = at_c(*product.c + i / 4 * 8, 8 * MAX_CHUNKS, lane, i % 4);
        }
    }
}

// Runs what a warp waits for, if all lanes of one do; whether there was such a warp.
static bool run_products() {
    for (uint32_t n = 0; n < block->warps; n++) {
        const uint32_t w = block->descending ? block->warps - 1 - n : n;
        Products& of = block->products[w];
        if (of.waiting != 0xffffffffu) continue;
        const Fiber* lanes = block->fibers + 32 * w;
        for (uint32_t lane = 1; lane < 32; lane++) {
            if (lanes[lane].operand != lanes->operand || lanes[lane].product_group != lanes->product_group ||
                lanes[lane].product_count != lanes->product_count) {
                record(KSIM_LAUNCH_FAILED, "warp %u: lanes wait for different products of wgmma", w);
            }
        }
        uint32_t done = 0;
        while (done < of.count && !error &&
               of.queue[done]->shape.group + lanes->operand < lanes->product_group) {
            run_product(of, done++, w);
        }
        // Those that have run are free for others, behind the rest.
        for (uint32_t i = 0; done > 0 && i + done < of.room; i++) {
            Product* free = of.queue[i];
            of.queue[i] = of.queue[i + done];
            of.queue[i + done] = free;
        }
        of.count -= done;
        of.ended += done;
        of.waiting = 0;
        block->warp[w].ready = 0xffffffffu;
        return true;
    }
    return false;
}

// Of a thread that ends.
static void leave_products() {
    const Products& of = block->products[self->linear / 32];
    if (self->product_count == of.ended) return;
    const uint32_t left = self->product_count - of.ended;
    const bool is_open = of.queue[left - 1]->shape.group == self->product_group;
    fail(KSIM_LAUNCH_FAILED, "the thread ended with %u products under way: no %s", left,
         is_open ? "wgmma_commit()" : "wgmma_wait() for their group");
}

// Of a block that ends: four warps have multiplied together.
static void compare_products() {
    for (uint32_t w = 0; w < block->warps; w++) {
        const uint32_t first = w / 4 * 4;
        const uint64_t expected = first + 4 <= block->warps ? block->products[first].issued : 0;
        if (block->products[w].issued == expected) continue;
        record(KSIM_LAUNCH_FAILED, "warp %u issued other products of wgmma than the others of its warpgroup", w);
    }
}

static void free_products(Products& of) {
    for (uint32_t i = 0; i < of.room; i++) free(of.queue[i]);
    free(of.queue);
}

}  // namespace sim
