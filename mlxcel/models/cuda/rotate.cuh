// Heads as the joined projection gives them, (rows, width, HQ + 2 HKV, D), taken apart: queries
// (rows, width, HQ, D) and keys (rows, HKV, width, D) rotated by halves, values as the keys lie.
// One thread per pair.

#include "common.cuh"

namespace mlx::core::cu {

template <typename T, int HQ, int HKV, int D>
__device__ __forceinline__ void rotate(
    const T* heads, const int* offset, const float* frequencies, T* queries, T* keys, T* values,
    int rows, int width) {
  constexpr int HEADS = HQ + 2 * HKV;
  constexpr int HALF = D / 2;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= rows * width * HEADS * HALF) return;
  const int pair = at % HALF;
  const int head = at / HALF % HEADS;
  const int position = at / (HALF * HEADS) % width;
  const int row = at / (HALF * HEADS * width);
  const T* in = heads + (long long)(at / HALF) * D;
  float a = float(in[pair]), b = float(in[pair + HALF]);
  if (head < HQ + HKV) {
    const float angle = float(position + offset[row]) * frequencies[pair];
    const float c = cosf(angle), s = sinf(angle), left = a;
    a = left * c - b * s;
    b = left * s + b * c;
  }
  T* to;
  if (head < HQ) {
    to = queries + ((long long)(row * width + position) * HQ + head) * D;
  } else {
    const int kv = head - HQ;
    to = kv < HKV ? keys : values;
    to += ((long long)(row * HKV + kv % HKV) * width + position) * D;
  }
  to[pair] = T(a);
  to[pair + HALF] = T(b);
}

} // namespace mlx::core::cu
