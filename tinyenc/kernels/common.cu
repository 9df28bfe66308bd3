// What the kernels share. This stands before the source of each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int BLOCK = 128, WARP = 32;

// Joins x over the LANES threads of a row, by maximum or sum; all of them get the result.
template <int LANES, typename Real, typename Join>
__device__ Real across(Real x, Join join) {
#pragma unroll
    for (int step = (LANES < WARP ? LANES : WARP) / 2; step > 0; step /= 2)
        x = join(x, __shfl_xor_sync(~0u, x, step));
    if constexpr (LANES > WARP) {
        __shared__ Real of_warp[LANES / WARP];
        __syncthreads();  // an earlier call may still be reading
        if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
        __syncthreads();
        x = of_warp[0];
#pragma unroll
        for (int warp = 1; warp < LANES / WARP; ++warp) x = join(x, of_warp[warp]);
    }
    return x;
}
