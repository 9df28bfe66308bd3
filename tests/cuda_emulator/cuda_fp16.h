// CUDA's 16-bit float, as far as kernels here use it: storage, converted to and from float.
#pragma once
struct __half {
    _Float16 value;
    __half() = default;  // trivial, as __shared__ arrays need
    explicit __half(float x) : value(x) {}
    operator float() const { return value; }
};
