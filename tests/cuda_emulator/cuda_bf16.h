// CUDA's bfloat16, as far as kernels here use it: storage, converted to and from float.
#pragma once
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) {
        uint32_t wide;
        memcpy(&wide, &x, 4);
        bits = x != x ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;  // nearest, ties to even
    }
    operator float() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    }
};
