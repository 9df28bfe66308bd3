// The CUDA C++ that a kernel sees when its device is emulated. Included before the kernel's source.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ thread_local  // puts it into a segment of its own, whose bounds the emulator can ask for

namespace emulator {

struct Index {
    unsigned x, y, z;
};
extern Index thread_index, block_index;

void barrier(int line);

// Waits for the lanes in `mask`; then returns what the lane `from` passed.
uint64_t exchange(unsigned mask, uint64_t mine, unsigned from, int line);
unsigned this_lane();

// A kernel as its host sees it: its parameters, and a call through pointers to the arguments.
struct Parameter {
    char kind;  // p pointer, s structure, f floating point, i signed, u unsigned
    int size;
};

template <typename T>
constexpr char kind() {
    if (std::is_pointer_v<T>) return 'p';
    if (std::is_class_v<T>) return 's';
    if (std::is_floating_point_v<T>) return 'f';
    return std::is_signed_v<T> ? 'i' : 'u';
}

struct Kernel {
    int count;
    const Parameter* parameters;
    void (*call)(void* const* arguments);
};

template <auto function> struct Entry;
template <typename... P, void (*function)(P...)>
struct Entry<function> {
    static constexpr Parameter parameters[] = {{kind<P>(), sizeof(P)}...};

    template <size_t... I>
    __attribute__((no_sanitize("thread"))) static void call(void* const* arguments, std::index_sequence<I...>) {
        function(*static_cast<P*>(arguments[I])...);
    }
    static void call(void* const* arguments) { call(arguments, std::index_sequence_for<P...>()); }
    static constexpr Kernel kernel = {sizeof...(P), parameters, call};
};

}  // namespace emulator

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index

inline void __syncthreads(int line = __builtin_LINE()) { emulator::barrier(line); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int line = __builtin_LINE()) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulator::exchange(mask, bits, emulator::this_lane() ^ flip, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
