// Logits → the next token of each row's slot, and what follows from it: the slot's new state and a
// record for the host. rust/engine/src/sampler.rs specifies it, arithmetic included.
//
// Four kernels, a row of blocks for each row of logits; which of them have work for a row is known
// on the card only, so the list of launches is the same for all requests:
//   sample_adjust  y: bias, mask and penalties; the greedy choice. A greedy row is done here.
//   sample_bins    counts and masses of z by bins of equal width, where a filter needs them
//   sample_cut     the lowest survivor of the filters: sorts the tokens of the few bins in question
//   sample_draw    the noise, the draw
// Where drafts are verified (VERIFIES) the rows of one slot are neighbours: the token drawn last, then
// its draft. Each row draws as if all drafted before it were right, and changes nothing; a fifth kernel,
//   sample_accept  takes a slot's rows in turn, as long as what a row drew is the next one's token.
// A kernel's last block to arrive does what needs all of its row. Counts and masses are integers
// and maxima have no order, so the bits depend neither on the grid nor on other rows.
//
// variant.cuh: N_VOCAB, N_CTX, TILE, MAX_BLOCKS, BINS, LIST, RING_STEPS, VERIFIES.
#include "sample_row.cuh"

// ---------------------------------------------------------------- bias, mask, penalties, greedy

KERNEL_BOUNDS(sample_adjust, Params, THREADS, 4) {
    alignas(16) SHARED float tile_y[TILE];
    SHARED uint64_t scratch[WARPS];
    SHARED uint32_t ticket;
    STAMP(STAMP_BEGUN);
    uint32_t row = blockIdx.y, t = threadIdx.x;
    // All but the logits is of earlier steps, or of kernels whose ends the preceding one waited for.
    Row* r = p.rows + row;
    uint32_t slot = load_relaxed_u32(p.slots + row);
    uint32_t number = load_relaxed_u32(p.step) + 1;
    SlotState* s = p.state + slot;
    uint32_t live = load_relaxed_u32(&s->live);
    Before before = load_before(s, slot);
    const uint32_t* bias = load_pointer(&s->bias);
    uint32_t only_biased = load_relaxed_u32(&s->only_biased);
    uint64_t constrained = load_relaxed_u64(&s->constrained);
    uint32_t top_k = load_relaxed_u32(&s->top_k);
    uint64_t share = load_relaxed_u64(&s->share);
    float temperature = load_relaxed_f32(&s->temperature);
    float repeat = load_relaxed_f32(&s->repeat_penalty);
    float presence = load_relaxed_f32(&s->presence_penalty);
    float frequency = load_relaxed_f32(&s->frequency_penalty);
    uint32_t stop_token = load_stop_token(before);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    const float* logits = p.logits + static_cast<uint64_t>(row) * N_VOCAB;
    float l[4];
    load_logits(logits, blockIdx.x * TILE + 4 * t, l);
    if (!live) {
        if (blockIdx.x == 0 && t == 0) {
            r->phase = DONE;
            if (!VERIFIES) write_record(p, row, number, 0);
        }
        return;
    }
    uint32_t drafted = drafted_before(p, row, before);
    bool greedy = temperature == 0.0f;
    bool filters = !greedy && (top_k != 0 || share >> 32 == 0);
    delay_block();
    if (filters) {
        // For the next kernel of this step; the last step's are done with them.
        uint64_t at = static_cast<uint64_t>(row) * BINS;
        for (uint32_t i = blockIdx.x * THREADS + t; i < BINS; i += gridDim.x * THREADS) {
            p.bin_counts[at + i] = 0;
            p.bin_masses[at + i] = 0;
        }
    }
    uint64_t best = 0;
    for (uint32_t tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        uint32_t first = tile * TILE + 4 * t;
        if (tile != blockIdx.x) load_logits(logits, first, l);
        float y[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            // False for NaN and what is infinite, which there is behind the vocabulary.
            if (!(fabsf(l[i]) < infinity_f32()) && first + i < N_VOCAB) {
                best = larger(best, static_cast<uint64_t>(KEY_BAD) << 32 | ~(first + i));
            }
            y[i] = l[i];
        }
        if (bias) {
            // Offsets of each tile's first entry and of the end, then {id, value}.
            uint32_t begin = load_relaxed_u32(bias + tile);
            uint32_t end = load_relaxed_u32(bias + tile + 1);
            const uint32_t* entries = bias + TILES + 1;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                tile_y[4 * t + i] = only_biased ? -infinity_f32() : y[i];
            }
            __syncthreads();
            for (uint32_t e = begin + t; e < end; e += THREADS) {
                uint32_t id = load_relaxed_u32(entries + 2 * e);
                float value = u32_as_float(load_relaxed_u32(entries + 2 * e + 1));
                float& of = tile_y[id - tile * TILE];
                if (!only_biased) {
                    of = add_rn(of, value);
                } else if (value == infinity_f32()) {
                    of = load_relaxed_f32(logits + id);
                }
            }
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) y[i] = tile_y[4 * t + i];
        }
        if (constrained) {
            const uint32_t* mask = p.masks + static_cast<uint64_t>(row) * MASK_WORDS;
            uint32_t bits = first < N_VOCAB ? load_relaxed_u32(mask + first / 32) : 0;
            bits >>= first % 32;  // four neighbours lie in one word
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (!(bits >> i & 1)) y[i] = -infinity_f32();
            }
        }
        if (before.window) {
            const uint32_t* counts = p.counts + static_cast<uint64_t>(slot) * N_VOCAB;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t seen = first + i < N_VOCAB ? load_relaxed_u32(counts + first + i) : 0;
                if (drafted) seen = seen_with_draft(p, row, drafted, before, first + i, seen);
                if (seen) y[i] = y[i] > 0.0f ? div_rn(y[i], repeat) : mul_rn(y[i], repeat);
                uint32_t drawn = seen & ~IN_PROMPT;
                if (drawn) {
                    y[i] = sub_rn(fma_rn(-frequency, static_cast<float>(drawn), y[i]), presence);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t rank = rank_of(y[i], first + i);
            if (!(y[i] < infinity_f32())) {
                rank = static_cast<uint64_t>(KEY_BAD) << 32 | ~((first + i) | BAD_ADJUSTED);
            }
            best = larger(best, rank);
        }
        if (!greedy && first < PADDED) {
            *reinterpret_cast<float4*>(p.y + static_cast<uint64_t>(row) * PADDED + first) =
                make_float4(y[0], y[1], y[2], y[3]);
        }
    }
    const bool is_last = arrives_last(p, row, &r->tickets[0], ticket, scratch, best);
    STAMP(STAMP_ENDED);
    if (!is_last) return;
    best = row_max(p, row, scratch);
    uint32_t key = rank_key(best), id = rank_id(best);
    if (key == KEY_BAD || key == KEY_OF_MINUS_INFINITY) {
        if (t == 0) {
            r->phase = DONE;
            uint32_t why = key == KEY_BAD ? id & RECORD_TOKEN : RECORD_BANNED;
            uint32_t record = RECORD_LIVE | FINISH_FAILED << RECORD_FINISH | why;
            if (VERIFIES) r->drawn = record;
            if (!VERIFIES) s->live = 0, write_record(p, row, number, record);
        }
    } else if (greedy) {
        if (t == 0) r->phase = DONE;
        take_token(p, r, row, number, before, stop_token, id);
    } else if (t == 0) {
        r->phase = filters ? FILTER : DRAW;
        r->number = number;
        r->index = before.generated + drafted;
        r->top_k = top_k;
        r->share = share;
        r->seed = load_relaxed_u64(&s->seed);
        r->most = key_value(key);
        r->temperature = temperature;
        r->listed = 0;
        r->threshold = static_cast<uint64_t>(load_relaxed_u32(&s->least_key)) << 32;
    }
    STAMP(STAMP_ENDED);
}

// ---------------------------------------------------------------- where the filters cut

KERNEL_BOUNDS(sample_bins, Params, THREADS, 3) {
    SHARED uint64_t scratch[WARPS];
    SHARED uint32_t ticket;
    SHARED uint64_t mass_k, mass_in_k, mass_first;
    SHARED uint32_t bin_k, rank_k, count_k, first, last, before_first, through_last;
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t row = blockIdx.y, t = threadIdx.x;
    Row* r = p.rows + row;
    if (load_relaxed_u32(&r->phase) != FILTER) return;
    float most = load_relaxed_f32(&r->most), temperature = load_relaxed_f32(&r->temperature);
    uint32_t top_k = load_relaxed_u32(&r->top_k);
    uint64_t share = load_relaxed_u64(&r->share);
    bool top_p = share >> 32 == 0;
    const float* y = p.y + static_cast<uint64_t>(row) * PADDED;
    uint32_t* counts = p.bin_counts + static_cast<uint64_t>(row) * BINS;
    uint64_t* masses = p.bin_masses + static_cast<uint64_t>(row) * BINS;
    delay_block();
    uint64_t rest = 0;
    for (uint32_t tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        float z[4];
        load_z(y, tile * TILE + 4 * t, most, temperature, z);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool alive = z[i] > -infinity_f32();
            uint32_t bin = alive ? bin_of(z[i]) : 0;
            bool far = alive && bin == BINS - 1;
            rest += far;
            // Equal tokens of a warp count as one addition, so that ties do not queue.
            uint32_t key = alive && !far ? order_key(z[i]) : 0;
            uint32_t same = __match_any_sync(FULL_WARP, key);
            if (key != 0 && static_cast<int>(t % 32) == __ffs(static_cast<int>(same)) - 1) {
                uint32_t n = static_cast<uint32_t>(__popc(same));
                atomicAdd(counts + bin, n);
                uint64_t mass = top_p ? mass_of(z[i]) * n : 0;
                if (mass) {
                    atomicAdd(reinterpret_cast<unsigned long long*>(masses + bin),
                              static_cast<unsigned long long>(mass));
                }
            }
        }
    }
    rest = block_sum_u64<WARPS>(rest, scratch);
    if (t == 0) {
        if (rest) atomicAdd(counts + BINS - 1, static_cast<uint32_t>(rest));
        ticket = atomic_inc_acq_rel_wrap(&r->tickets[1], gridDim.x - 1);
        bin_k = NONE;
        first = 1, last = 0, before_first = 0, through_last = 0, count_k = 0, rank_k = 0;
        mass_in_k = 0, mass_first = 0;
    }
    __syncthreads();
    STAMP(STAMP_ENDED);
    if (ticket != gridDim.x - 1) return;

    uint32_t n[8];
    uint64_t m[8], n_sum = 0, m_sum = 0;
    uint4 low = load_relaxed_u32x4(counts + 8 * t), high = load_relaxed_u32x4(counts + 8 * t + 4);
    n[0] = low.x, n[1] = low.y, n[2] = low.z, n[3] = low.w;
    n[4] = high.x, n[5] = high.y, n[6] = high.z, n[7] = high.w;
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
        uint4 pair = make_uint4(0, 0, 0, 0);
        if (top_p) pair = load_relaxed_u32x4(masses + 8 * t + i);
        m[i] = static_cast<uint64_t>(pair.y) << 32 | pair.x;
        m[i + 1] = static_cast<uint64_t>(pair.w) << 32 | pair.z;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) n_sum += n[i], m_sum += m[i];
    uint64_t n_before = block_sum_before_u64<WARPS>(n_sum, scratch);
    uint64_t m_before = block_sum_before_u64<WARPS>(m_sum, scratch);
    if (t == THREADS - 1) mass_k = m_before + m_sum;
    __syncthreads();
    if (top_k != 0) {
        uint64_t n_here = n_before, m_here = m_before;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            if (n_here < top_k && n_here + n[i] >= top_k) {
                bin_k = 8 * t + i;
                rank_k = top_k - static_cast<uint32_t>(n_here);
                count_k = n[i];
                mass_k = m_here;
                mass_in_k = m[i];
            }
            n_here += n[i], m_here += m[i];
        }
    }
    __syncthreads();
    if (top_p) {
        // How much of bin_k belongs to the first k is not known yet; so the bounds of where top-p
        // may end.
        uint64_t least = mass_wanted(mass_k, share);
        uint64_t greatest = mass_wanted(mass_k + mass_in_k, share);
        uint64_t n_here = n_before, m_here = m_before;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            if (m_here < least && m_here + m[i] >= least) {
                first = 8 * t + i;
                before_first = static_cast<uint32_t>(n_here);
                mass_first = m_here;
            }
            n_here += n[i];
            if (m_here < greatest && m_here + m[i] >= greatest) {
                last = 8 * t + i;
                through_last = static_cast<uint32_t>(n_here);
            }
            m_here += m[i];
        }
    }
    __syncthreads();
    if (t == 0) {
        uint32_t listed = through_last - before_first;
        if (bin_k != NONE && !(first <= bin_k && bin_k <= last)) listed += count_k;
        r->gather = listed == 0 ? GATHER_NONE : listed <= LIST ? GATHER_LIST : GATHER_SCAN;
        r->bin_k = bin_k;
        r->rank_k = rank_k;
        r->mass_k = mass_k;
        r->first = first;
        r->last = last;
        r->mass_first = mass_first;
    }
    STAMP(STAMP_ENDED);
}

// A row of z as one block reads it.
struct Scan {
    const float* y;
    float most, temperature;
};

// The rank that ends the shortest front of the tokens of rank `low` and above whose masses, or
// numbers, sum to `wanted`; 0 where all of them do not. For rows whose bins hold too many equal or
// nearly equal tokens: reads the row about nine times, whatever is in it.
template <bool by_mass>
DEVICE uint64_t scan_front(const Scan& row, uint64_t low, uint64_t wanted, uint64_t* scratch) {
    uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32;
    uint32_t key = 0;
    uint64_t before = 0;
    for (int shift = 28; shift >= 0; shift -= 4) {
        uint64_t sums[16];
#pragma unroll
        for (uint32_t d = 0; d < 16; d++) sums[d] = 0;
        for (uint32_t at = 4 * t; at < PADDED; at += TILE) {
            float z[4];
            load_z(row.y, at, row.most, row.temperature, z);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint64_t rank = rank_of(z[i], at + i);
                uint32_t above = rank_key(rank) >> shift;
                bool counts = rank >= low && above >> 4 == key;
                uint64_t weight = !counts ? 0 : by_mass ? mass_of(z[i]) : 1;
#pragma unroll
                for (uint32_t d = 0; d < 16; d++) sums[d] += (above & 15) == d ? weight : 0;
            }
        }
        uint32_t digit = NONE;
#pragma unroll
        for (int d = 15; d >= 0; d--) {
            uint64_t sum = block_sum_u64<WARPS>(sums[d], scratch);
            if (digit == NONE && before + sum >= wanted) digit = static_cast<uint32_t>(d);
            if (digit == NONE) before += sum;
        }
        if (digit == NONE) return 0;
        key = key << 4 | digit;
    }
    // Among the equal ones the place is a number of tokens, in the order of their ids.
    uint64_t weight = by_mass ? mass_of(key_value(key)) : 1;
    uint64_t place = (wanted - before + weight - 1) / weight;
    uint32_t begin = 0, end = N_VOCAB;
    auto chosen = [&](uint32_t id) {
        float z[4];
        load_z(row.y, id / 4 * 4, row.most, row.temperature, z);
        float own = id % 4 == 0 ? z[0] : id % 4 == 1 ? z[1] : id % 4 == 2 ? z[2] : z[3];
        uint64_t rank = rank_of(own, id);
        return rank >= low && rank_key(rank) == key;
    };
    while (end - begin > 32) {
        uint32_t part = (end - begin + WARPS - 1) / WARPS;
        uint32_t from = min(begin + warp * part, end), to = min(from + part, end);
        uint64_t n = 0;
        for (uint32_t id = from + lane; id < to; id += 32) n += chosen(id);
        n = warp_sum_u64(n);
        __syncthreads();
        if (lane == 0) scratch[warp] = n;
        __syncthreads();
        uint32_t w = 0;
        while (w + 1 < WARPS && scratch[w] < place) place -= scratch[w++];
        begin = min(begin + w * part, end);
        end = min(begin + part, end);
    }
    __syncthreads();
    uint32_t found = __ballot_sync(FULL_WARP, begin + lane < end && chosen(begin + lane));
    for (; place > 1; place--) found &= found - 1;
    uint32_t id = begin + static_cast<uint32_t>(__ffs(static_cast<int>(found))) - 1;
    return static_cast<uint64_t>(key) << 32 | ~id;
}

DEVICE uint64_t scan_mass(const Scan& row, uint64_t low, uint64_t* scratch) {
    uint64_t sum = 0;
    for (uint32_t at = 4 * threadIdx.x; at < PADDED; at += TILE) {
        float z[4];
        load_z(row.y, at, row.most, row.temperature, z);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum += rank_of(z[i], at + i) >= low ? mass_of(z[i]) : 0;
    }
    return block_sum_u64<WARPS>(sum, scratch);
}

// Largest first; `n` is a power of two.
DEVICE void sort_ranks(uint64_t* ranks, uint32_t n) {
    for (uint32_t size = 2; size <= n; size *= 2) {
        for (uint32_t stride = size / 2; stride != 0; stride /= 2) {
            for (uint32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                uint32_t low = 2 * i - i % stride, high = low + stride;
                uint64_t a = ranks[low], b = ranks[high];
                if ((low & size) == 0 ? a < b : a > b) ranks[low] = b, ranks[high] = a;
            }
            __syncthreads();
        }
    }
}

KERNEL_BOUNDS(sample_cut, Params, THREADS, 1) {
    SHARED uint64_t ranks[LIST];
    SHARED uint64_t scratch[WARPS];
    SHARED uint64_t end;
    SHARED uint32_t ticket;
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t row = blockIdx.y, t = threadIdx.x;
    Row* r = p.rows + row;
    if (load_relaxed_u32(&r->phase) != FILTER) return;
    uint32_t gather = load_relaxed_u32(&r->gather);
    if (gather == GATHER_NONE) return;
    Scan scan = {p.y + static_cast<uint64_t>(row) * PADDED, load_relaxed_f32(&r->most),
                 load_relaxed_f32(&r->temperature)};
    uint64_t share = load_relaxed_u64(&r->share);
    uint64_t threshold = load_relaxed_u64(&r->threshold);
    bool top_p = share >> 32 == 0;
    delay_block();
    if (gather == GATHER_SCAN) {
        if (blockIdx.x != 0) return;
        uint32_t top_k = load_relaxed_u32(&r->top_k);
        uint64_t low = static_cast<uint64_t>(KEY_OF_MINUS_INFINITY + 1) << 32;
        if (top_k != 0) low = larger(low, scan_front<false>(scan, low, top_k, scratch));
        if (top_p) {
            uint64_t wanted = mass_wanted(scan_mass(scan, low, scratch), share);
            low = larger(low, scan_front<true>(scan, low, wanted, scratch));
        }
        if (t == 0) r->threshold = larger(threshold, low);
        return;
    }
    uint32_t bin_k = load_relaxed_u32(&r->bin_k);
    uint32_t first = load_relaxed_u32(&r->first), last = load_relaxed_u32(&r->last);
    uint64_t* list = p.list + static_cast<uint64_t>(row) * LIST;
    for (uint32_t tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        float z[4];
        uint32_t at = tile * TILE + 4 * t;
        load_z(scan.y, at, scan.most, scan.temperature, z);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (!(z[i] > -infinity_f32())) continue;
            uint32_t bin = bin_of(z[i]);
            if (bin == bin_k || (first <= bin && bin <= last)) {
                uint32_t place = atomicAdd(&r->listed, 1u);
                if (place < LIST) list[place] = rank_of(z[i], at + i);
            }
        }
    }
    __syncthreads();
    if (t == 0) ticket = atomic_inc_acq_rel_wrap(&r->tickets[2], gridDim.x - 1);
    __syncthreads();
    STAMP(STAMP_ENDED);
    if (ticket != gridDim.x - 1) return;

    uint32_t n = min(load_relaxed_u32(&r->listed), LIST), room = 1;
    while (room < n) room *= 2;
    for (uint32_t i = t; i < room; i += THREADS) ranks[i] = i < n ? load_relaxed_u64(list + i) : 0;
    if (t == 0) end = 0;
    __syncthreads();
    sort_ranks(ranks, room);
    uint64_t low = 0, total = load_relaxed_u64(&r->mass_k);
    if (bin_k != NONE) {
        uint64_t above = 0, mass = 0;
        for (uint32_t i = t; i < n; i += THREADS) above += bin_of(rank_z(ranks[i])) < bin_k;
        above = block_sum_u64<WARPS>(above, scratch);
        low = ranks[above + load_relaxed_u32(&r->rank_k) - 1];
        for (uint32_t i = t; i < n; i += THREADS) {
            float z = rank_z(ranks[i]);
            if (top_p && ranks[i] >= low && bin_of(z) == bin_k) mass += mass_of(z);
        }
        total += block_sum_u64<WARPS>(mass, scratch);
    }
    if (top_p) {
        uint64_t wanted = mass_wanted(total, share);
        uint32_t each = (n + THREADS - 1) / THREADS;
        uint32_t from = min(t * each, n), to = min(from + each, n);
        uint64_t sum = 0;
        for (uint32_t i = from; i < to; i++) sum += mass_of(rank_z(ranks[i]));
        sum = load_relaxed_u64(&r->mass_first) + block_sum_before_u64<WARPS>(sum, scratch);
        for (uint32_t i = from; i < to; i++) {
            uint64_t mass = mass_of(rank_z(ranks[i]));
            if (sum < wanted && sum + mass >= wanted) end = ranks[i];
            sum += mass;
        }
        __syncthreads();
        low = larger(low, end);
    }
    if (t == 0) r->threshold = larger(threshold, low);
    STAMP(STAMP_ENDED);
}

// ---------------------------------------------------------------- the draw

KERNEL_BOUNDS(sample_draw, Params, THREADS, 4) {
    SHARED uint64_t scratch[WARPS];
    SHARED uint32_t ticket;
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t row = blockIdx.y, t = threadIdx.x;
    // Rows have the step's number from the first kernel.
    if (blockIdx.x == 0 && row == 0 && t == 0) *p.step = load_relaxed_u32(p.step) + 1;
    Row* r = p.rows + row;
    uint32_t slot = load_relaxed_u32(p.slots + row);
    if (load_relaxed_u32(&r->phase) == DONE) return;
    uint64_t threshold = load_relaxed_u64(&r->threshold), seed = load_relaxed_u64(&r->seed);
    uint32_t index = load_relaxed_u32(&r->index), number = load_relaxed_u32(&r->number);
    float most = load_relaxed_f32(&r->most), temperature = load_relaxed_f32(&r->temperature);
    Before before = load_before(p.state + slot, slot);
    delay_block();
    uint64_t best = 0;
    for (uint32_t tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        uint32_t first = tile * TILE + 4 * t;
        float z[4];
        load_z(p.y + static_cast<uint64_t>(row) * PADDED, first, most, temperature, z);
        bool survives[4], any = false;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            survives[i] = rank_of(z[i], first + i) >= threshold;
            any |= survives[i];
        }
        if (!any) continue;
        uint4 words = random_words(seed, index, first / 4);
        uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (!survives[i]) continue;
            best = larger(best, rank_of(add_rn(z[i], gumbel(word[i])), first + i));
        }
    }
    uint32_t stop_token = load_stop_token(before);
    const bool is_last = arrives_last(p, row, &r->tickets[3], ticket, scratch, best);
    STAMP(STAMP_ENDED);
    if (!is_last) return;
    best = row_max(p, row, scratch);
    take_token(p, r, row, number, before, stop_token, rank_id(best));
    STAMP(STAMP_ENDED);
}

// ---------------------------------------------------------------- drafts

// A block a row, which has work where its slot's rows begin. A row without a drawn token is as if it
// had never been.
KERNEL_BOUNDS(sample_accept, Params, THREADS, 1) {
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t row = blockIdx.x, slot = load_relaxed_u32(p.slots + row);
    if (row != 0 && load_relaxed_u32(p.slots + row - 1) == slot) return;
    SlotState* s = p.state + slot;
    uint32_t number = load_relaxed_u32(p.step);  // sample_draw has counted it
    bool is_drawn = load_relaxed_u32(&s->live) != 0;
    Before before = load_before(s, slot);
    uint32_t stop_token = load_stop_token(before);
    delay_block();
    __syncthreads();  // nobody writes the state that another thread has still to read
    for (; row < gridDim.x && load_relaxed_u32(p.slots + row) == slot; row++) {
        if (!is_drawn && threadIdx.x == 0) write_record(p, row, number, 0);
        if (!is_drawn) continue;
        uint32_t token = load_relaxed_u32(&p.rows[row].drawn);
        if (token & RECORD_LIVE) {
            if (threadIdx.x == 0) s->live = 0, write_record(p, row, number, token);
            is_drawn = false;
            continue;
        }
        bool has_ended = finish(p, row, number, before, stop_token, token);
        before.position++;
        before.generated++;
        bool has_next = row + 1 < gridDim.x && load_relaxed_u32(p.slots + row + 1) == slot;
        is_drawn = !has_ended && has_next && load_relaxed_u32(p.tokens + row + 1) == token;
    }
    STAMP(STAMP_ENDED);
}
