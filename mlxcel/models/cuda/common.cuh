#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What the kernels of this folder share.
namespace mlx::core::cu {

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) v += __shfl_xor_sync(0xffffffffu, v, away);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, away));
  return v;
}

// Less than every score.
__device__ __forceinline__ float nothing() {
  return __uint_as_float(0xff800000u);
}

template <typename T>
struct alignas(16) Eight {
  T of[8];
};

// 32 weights of one output. An integer put below the exponent of 2^23 is a float of that plus
// the integer: no conversion is needed. Four bits in place are the value times 16, 256, ...;
// the scale is divided by as much, exactly.
template <int BITS>
struct Packed {
  uint4 word[BITS / 4];

  // The 32 weights at 32 * at, counted from the matrix's first.
  __device__ __forceinline__ void read(const void* matrix, long long at) {
    const uint4* from = reinterpret_cast<const uint4*>(matrix) + at * (BITS / 4);
#pragma unroll
    for (int i = 0; i < BITS / 4; ++i) word[i] = from[i];
  }

  __device__ __forceinline__ unsigned bits(int i) const {
    const uint4& some = word[i / 4];
    return i % 4 == 0 ? some.x : i % 4 == 1 ? some.y : i % 4 == 2 ? some.z : some.w;
  }

  // Values 8 j to 8 j + 7.
  template <typename T>
  __device__ __forceinline__ void unpack(int j, float step, float low, float* value) const {
    constexpr unsigned BASE = 0x4b000000u;
    constexpr float TWO23 = 8388608.f;
    if constexpr (BITS == 4) {
      const unsigned a = bits(j), b = a >> 20;
      float part = step;
#pragma unroll
      for (int i = 0; i < 5; ++i) {
        value[i] = fmaf(__uint_as_float((a & (0xfu << (4 * i))) | BASE) - TWO23, part, low);
        if (i < 3)
          value[i + 5] = fmaf(__uint_as_float((b & (0xfu << (4 * i))) | BASE) - TWO23, part, low);
        part *= 0.0625f;
      }
    } else if constexpr (BITS == 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        value[i] = fmaf(
            __uint_as_float(__byte_perm(bits(2 * j + i / 4), BASE, 0x7440 | (i % 4))) - TWO23,
            step, low);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned two = bits(4 * j + i);
        value[2 * i] = float(reinterpret_cast<const T*>(&two)[0]);
        value[2 * i + 1] = float(reinterpret_cast<const T*>(&two)[1]);
      }
    }
  }
};

} // namespace mlx::core::cu
