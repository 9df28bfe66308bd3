// Masked softmax over attention scores with dropout, and its backward, each in one pass over memory:
//
//     weights = exp(scale * scores) / (its sum over the kept keys), 0 where the mask is false
//     dropped = weights / (1 - p) where random >= p, else 0
//     dscores = scale * weights * (dweights - sum(dweights * weights))
//
// A row is the scores of one query, over its keys. LANES neighbouring threads share a row; each holds PACKS
// packs of WIDTH elements of it in registers, and moves a pack in one access. A LONG row has more elements
// than its threads hold: it passes through the registers in chunks, and is read again once its sum is known.
// Storage is T: float, __half, __nv_bfloat16 or double. Arithmetic is float, or double for double.
constexpr double LOG2_E = 1.4426950408889634;

template <typename T> struct Arithmetic { typedef float Real; };
template <> struct Arithmetic<double> { typedef double Real; };

__device__ float power_of_two(float x) { return exp2f(x); }
__device__ double power_of_two(double x) { return exp2(x); }

template <typename T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
    T item[WIDTH];
};

struct Rows {
    u32 count, keys;
};

// The part of a row that one thread holds.
template <int WIDTH, int LANES, int PACKS, bool LONG>
struct Part {
    static constexpr int COUNT = PACKS * WIDTH;
    static constexpr u32 SPAN = LANES * COUNT;

    u32 row, keys;  // threads past the last row take it too, but no keys of it: they only join in reductions
    u64 start;      // of the row, in elements

    __device__ explicit Part(Rows rows) {
        const u32 number = blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES;
        row = min(number, rows.count - 1);
        keys = number < rows.count ? rows.keys : 0;
        start = u64(row) * rows.keys;
    }

    // Chunks begin at keys 0, SPAN, 2 * SPAN and so on, below this.
    __device__ u32 end() const { return LONG ? keys : 1; }

    // The first key of pack n of a chunk.
    __device__ u32 key(u32 chunk, int n) const { return chunk + (n * LANES + threadIdx.x % LANES) * WIDTH; }

    // The same, or 0 past the end of the row: loads that need no branch are all in flight together.
    __device__ u32 safe_key(u32 chunk, int n) const { return key(chunk, n) < keys ? key(chunk, n) : 0; }

    // Calls visit(n, key) for each pack of a chunk that lies in the row.
    template <typename Visit>
    __device__ void each_pack(u32 chunk, Visit visit) const {
#pragma unroll
        for (int n = 0; n < PACKS; ++n)
            if (key(chunk, n) < keys) visit(n, key(chunk, n));
    }

    template <typename T>
    struct Items {
        Pack<T, WIDTH> pack[PACKS];
        __device__ T operator[](int i) const { return pack[i / WIDTH].item[i % WIDTH]; }
    };

    template <typename T>
    __device__ Items<T> load(const T* row, u32 chunk) const {
        Items<T> items;
#pragma unroll
        for (int n = 0; n < PACKS; ++n)
            items.pack[n] = *reinterpret_cast<const Pack<T, WIDTH>*>(row + safe_key(chunk, n));
        return items;
    }

    template <typename T, typename Real>
    __device__ void store(T* row, u32 chunk, const Real (&x)[COUNT]) const {
        each_pack(chunk, [&](int n, u32 key) {
            Pack<T, WIDTH> pack;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) pack.item[i] = T(x[n * WIDTH + i]);
            *reinterpret_cast<Pack<T, WIDTH>*>(row + key) = pack;
        });
    }
};

// A boolean array broadcast over (batch, head, query, key) by its strides: 0 where it repeats.
struct Mask {
    i64 batch, head, query, key;
    u32 heads, queries;
    u32 packed;  // keys are neighbours and rows aligned, so that a pack is one access

    __device__ const bool* row(const bool* mask, u32 row) const {
        const u32 sequence = row / queries;
        return mask + sequence / heads * batch + sequence % heads * head + row % queries * query;
    }
};

// A bit for each element that a thread holds, set if it lies in the row and the mask, if there is one, keeps it.
template <int WIDTH, int LANES, int PACKS, bool LONG>
__device__ u32 kept(const Part<WIDTH, LANES, PACKS, LONG>& part, const bool* mask, const Mask& at, u32 chunk) {
    static_assert(PACKS * WIDTH <= 32, "a word has a bit for each element");
    u32 inside = 0, bits = 0;
    part.each_pack(chunk, [&](int n, u32) { inside |= ((1u << WIDTH) - 1) << (n * WIDTH); });
    if (!mask) return inside;

    const bool* row = at.row(mask, part.row);
    if (at.key == 0) return *row ? inside : 0;
    if constexpr (WIDTH % 4 == 0) {
        if (at.packed) {
#pragma unroll
            for (int n = 0; n < PACKS; ++n) {
                const auto four = *reinterpret_cast<const Pack<u32, WIDTH / 4>*>(row + part.safe_key(chunk, n));
#pragma unroll
                for (int i = 0; i < WIDTH / 4; ++i)  // the product has the four low bits side by side, from bit 24
                    bits |= (four.item[i] * 0x01020408 >> 24 & 15) << (n * WIDTH + i * 4);
            }
            return bits & inside;
        }
    }
#pragma unroll
    for (int i = 0; i < PACKS * WIDTH; ++i)
        bits |= u32(row[(part.safe_key(chunk, i / WIDTH) + i % WIDTH) * at.key]) << i;
    return bits & inside;
}

// Four random words that depend on nothing but a counter and a seed: Philox4x32 with seven rounds, the
// fewest that pass BigCrush (Salmon et al. 2011).
struct Philox {
    u32 a, b, c, d;

    __device__ Philox(u64 counter, u64 seed) : a(counter), b(counter >> 32), c(0), d(0) {
        u32 key0 = seed, key1 = seed >> 32;
#pragma unroll
        for (int round = 0; round < 7; ++round) {
            const u64 left = u64(0xD2511F53) * a, right = u64(0xCD9E8D57) * c;
            a = u32(right >> 32) ^ b ^ key0, b = right;
            c = u32(left >> 32) ^ d ^ key1, d = left;
            key0 += 0x9E3779B9, key1 += 0xBB67AE85;
        }
    }

    __device__ u32 word(u32 i) const { return i & 2 ? (i & 1 ? d : c) : (i & 1 ? b : a); }
};

template <typename Real>
struct Dropout {
    u64 seed;
    u32 threshold;  // p in units of 2**-32; 0 drops nothing
    Real gain;      // 1 / (1 - p)

    // Drops from WIDTH elements of an array, from `index` on; four neighbours share a counter.
    template <int WIDTH>
    __device__ void apply(Real* x, u64 index) const {
        const u32 first = WIDTH < 4 ? index % 4 : 0;
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4) {
            const Philox random(index / 4 + i / 4, seed);
#pragma unroll
            for (int j = 0; j < 4 && j < WIDTH; ++j)
                x[i + j] = random.word(first + j) < threshold ? 0 : x[i + j] * gain;
        }
    }
};

template <typename T, int WIDTH, int LANES, int PACKS, bool LONG, typename Real = typename Arithmetic<T>::Real>
__global__ void __launch_bounds__(BLOCK)
softmax_forward(const T* scores, const bool* mask, T* weights, T* dropped, Rows rows, Mask layout, Real scale,
                Dropout<Real> dropout) {
    const Part<WIDTH, LANES, PACKS, LONG> part(rows);
    constexpr int COUNT = part.COUNT;
    const Real infinity = __int_as_float(0x7f800000);
    const Real scale2 = scale * Real(LOG2_E);  // exp(scale * x) = 2**(scale2 * x)

    // Masked scores are minus infinity. What is subtracted from them must not be.
    const auto finite = [&](Real top) { return top == -infinity ? 0 : top; };

    // Online softmax (Milakov and Gimelshein 2018), each thread over its part of the row: `top` is the largest
    // exponent so far, x the powers of a chunk relative to it, and `sum` their sum.
    Real x[COUNT], top = -infinity, sum = 0;
    const auto read = [&](u32 chunk) {
        const auto score = part.load(scores + part.start, chunk);
        const u32 keep = kept(part, mask, layout, chunk);
        Real largest = -infinity;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            x[i] = keep >> i & 1 ? Real(score[i]) : -infinity;
            largest = max(largest, x[i]);
        }
        top = max(top, scale2 * largest);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = power_of_two(scale2 * x[i] - finite(top));
    };
    for (u32 chunk = 0; chunk < part.end(); chunk += part.SPAN) {
        const Real before = top;
        read(chunk);
        sum *= power_of_two(before - finite(top));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum += x[i];
    }

    const Real highest = across<LANES>(top, [](Real a, Real b) { return max(a, b); });
    const Real relative = power_of_two(top - finite(highest));
    const Real total = across<LANES>(sum * relative, [](Real a, Real b) { return a + b; });
    const Real factor = total == 0 ? 0 : relative / total;  // no key kept: zeros

    for (u32 chunk = 0; chunk < part.end(); chunk += part.SPAN) {
        if (LONG) read(chunk);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] *= factor;
        part.store(weights + part.start, chunk, x);
        if (dropout.threshold == 0) continue;
        part.each_pack(chunk, [&](int n, u32 key) { dropout.template apply<WIDTH>(x + n * WIDTH, part.start + key); });
        part.store(dropped + part.start, chunk, x);
    }
}

// Masked keys have weight 0, and so gradient 0: the mask is not needed.
template <typename T, int WIDTH, int LANES, int PACKS, bool LONG, typename Real = typename Arithmetic<T>::Real>
__global__ void __launch_bounds__(BLOCK)
softmax_backward(const T* ddropped, const T* weights, T* dscores, Rows rows, Real scale, Dropout<Real> dropout) {
    const Part<WIDTH, LANES, PACKS, LONG> part(rows);
    constexpr int COUNT = part.COUNT;

    Real w[COUNT], dw[COUNT], dot = 0;
    const auto read = [&](u32 chunk) {
        const auto weight = part.load(weights + part.start, chunk);
        const auto dweight = part.load(ddropped + part.start, chunk);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) w[i] = Real(weight[i]), dw[i] = Real(dweight[i]);
        if (dropout.threshold == 0) return;
        part.each_pack(chunk, [&](int n, u32 key) { dropout.template apply<WIDTH>(dw + n * WIDTH, part.start + key); });
    };
    for (u32 chunk = 0; chunk < part.end(); chunk += part.SPAN) {
        read(chunk);
        part.each_pack(chunk, [&](int n, u32) {
#pragma unroll
            for (int i = n * WIDTH; i < (n + 1) * WIDTH; ++i) dot += dw[i] * w[i];
        });
    }
    dot = across<LANES>(dot, [](Real a, Real b) { return a + b; });

    for (u32 chunk = 0; chunk < part.end(); chunk += part.SPAN) {
        if (LONG) read(chunk);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) dw[i] = scale * w[i] * (dw[i] - dot);
        part.store(dscores + part.start, chunk, dw);
    }
}

// y = x / (1 - p) where random >= p, else 0: the dropout above, on an array of any shape.
template <typename T, int WIDTH, typename Real = typename Arithmetic<T>::Real>
__global__ void __launch_bounds__(BLOCK) drop(const T* x, T* y, u64 size, Dropout<Real> dropout) {
    const u64 index = (u64(blockIdx.x) * BLOCK + threadIdx.x) * WIDTH;
    if (index >= size) return;
    Pack<T, WIDTH> pack = *reinterpret_cast<const Pack<T, WIDTH>*>(x + index);
    Real wide[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) wide[i] = Real(pack.item[i]);
    dropout.template apply<WIDTH>(wide, index);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) pack.item[i] = T(wide[i]);
    *reinterpret_cast<Pack<T, WIDTH>*>(y + index) = pack;
}
