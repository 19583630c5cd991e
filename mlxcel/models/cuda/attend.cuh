// Attention of a few queries per row over that row's part of a buffer.
//
// queries (rows, width, HQ, D); keys, values (rows, HKV, columns, D), of which query i of a row
// sees the first offset + i + 1; out as queries. One block per row and head. Warp i sees columns
// 32 i to 32 i + 31 of every WARPS * 32: which warp sums what, and in which order, follows from
// the column alone, so a query's numbers do not depend on how many others there are.
//
// MT: queries there is room for. `scale` has a factor log2(e): powers are of two.

#include "common.cuh"

namespace mlx::core::cu {

template <typename T, int MT, int WARPS, int HQ, int HKV, int D>
__device__ __forceinline__ void attend(
    const T* queries, const T* keys, const T* values, const int* offset, float scale, T* out,
    int width, int columns) {
  constexpr int OWN = D / 32;  // dimensions of a value that a lane sums
  constexpr int AHEAD = 8;     // values read before the first is needed
  __shared__ __align__(16) float asked[MT * D];
  __shared__ float best_of[WARPS], sum_of[WARPS], part[WARPS * D];

  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int head = blockIdx.x % HQ;
  const int row = blockIdx.x / HQ;
  const int start = offset[row];
  const long long group = row * HKV + head / (HQ / HKV);
  const T* key = keys + group * columns * D;
  const T* value = values + group * columns * D;

  for (int at = threadIdx.x; at < MT * D; at += WARPS * 32) {
    const int m = at / D;
    asked[at] = m < width
        ? float(queries[((long long)(row * width + m) * HQ + head) * D + at % D]) * scale
        : 0.f;
  }
  __syncthreads();

  float best[MT], sum[MT] = {}, total[MT][OWN] = {};
#pragma unroll
  for (int m = 0; m < MT; ++m) best[m] = nothing();
  const int end = start + width < columns ? start + width : columns;
  for (int from = warp * 32; from < end; from += WARPS * 32) {
    const int column = from + lane < end ? from + lane : end - 1;
    float score[MT] = {};
#pragma unroll
    for (int d = 0; d < D; d += 8) {
      const Eight<T> some = *reinterpret_cast<const Eight<T>*>(key + (long long)column * D + d);
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          score[m] = fmaf(asked[m * D + d + i], float(some.of[i]), score[m]);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const bool seen = from + lane <= start + m && from + lane < end;
      const float mine = seen ? score[m] : nothing();
      const float top = fmaxf(best[m], warp_max(mine));
      const float kept = top == nothing() ? 1.f : exp2f(best[m] - top);
      score[m] = top == nothing() ? 0.f : exp2f(mine - top);
      sum[m] = fmaf(sum[m], kept, warp_sum(score[m]));
#pragma unroll
      for (int i = 0; i < OWN; ++i) total[m][i] *= kept;
      best[m] = top;
    }
    // Columns past the end have weight 0; reading the last one instead changes nothing.
#pragma unroll
    for (int j = 0; j < 32; j += AHEAD) {
      if (from + j >= end) break;
      float some[AHEAD][OWN];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const int at = from + j + a < end ? from + j + a : end - 1;
#pragma unroll
        for (int i = 0; i < OWN; ++i) some[a][i] = float(value[(long long)at * D + i * 32 + lane]);
      }
#pragma unroll
      for (int a = 0; a < AHEAD; ++a)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const float weight = __shfl_sync(0xffffffffu, score[m], j + a);
#pragma unroll
          for (int i = 0; i < OWN; ++i) total[m][i] = fmaf(weight, some[a][i], total[m][i]);
        }
    }
  }

#pragma unroll
  for (int m = 0; m < MT; ++m) {
    if (m >= width) break;
    __syncthreads();
    if (lane == 0) {
      best_of[warp] = best[m];
      sum_of[warp] = sum[m];
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) part[warp * D + i * 32 + lane] = total[m][i];
    __syncthreads();
    float top = nothing();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) top = fmaxf(top, best_of[i]);
    for (int d = threadIdx.x; d < D; d += WARPS * 32) {
      float up = 0.f, down = 0.f;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) {
        const float kept = best_of[i] == nothing() ? 0.f : exp2f(best_of[i] - top);
        up = fmaf(part[i * D + d], kept, up);
        down = fmaf(sum_of[i], kept, down);
      }
      out[((long long)(row * width + m) * HQ + head) * D + d] = T(up / down);
    }
  }
}

} // namespace mlx::core::cu
