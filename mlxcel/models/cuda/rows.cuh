// Product of a few rows with a (quantized) matrix: out[m, n] = sum over k of x[m, k] * w[n, k].
//
// A warp makes R columns of the output for all rows at once, so the weights are read once,
// whatever the number of rows. The order of all sums follows from K alone: a row's numbers are
// the same bits whether it is alone or among others.
//
// T: of activations. MT: rows there is room for. R: outputs per warp. WARPS: per block. K, N: inner
// size and outputs. BITS: 4, 8, or 16 for weights of type T. GROUP: weights per scale. GATED: the
// first half of the outputs are gates of the second.
// `gain`, if there is one, asks for a root mean square norm of x first; `added` is a residual.

#include "common.cuh"

namespace mlx::core::cu {

template <typename T, int MT, int R, int WARPS, int K, int N, int BITS, int GROUP, bool GATED>
__device__ __forceinline__ void few_rows(
    const T* x, const void* w, const T* scales, const T* biases, const T* gain, float eps,
    const T* added, T* out, int rows) {
  constexpr int PASS = 1024;  // values per warp and pass: 32 per lane
  constexpr int PASSES = (K + PASS - 1) / PASS;
  constexpr int ROOM = 32768 / (MT * PASS * int(sizeof(T)));
  constexpr int HELD = ROOM < 1 ? 1 : (ROOM < PASSES ? ROOM : PASSES);
  constexpr int EIGHTS = HELD * PASS / 8;
  constexpr int OUTS = GATED ? N / 2 : N;
  constexpr int TURNS = (MT * EIGHTS + WARPS * 32 - 1) / (WARPS * 32);
  __shared__ __align__(16) T held[MT * HELD * PASS];
  __shared__ float squares[MT * EIGHTS / 32];
  Eight<T>* const eights = reinterpret_cast<Eight<T>*>(held);

  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int first = (blockIdx.x * WARPS + warp) * R;

  int from[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int n = GATED ? first / 2 + r / 2 + (r % 2) * OUTS : first + r;
    from[r] = n < N ? n : N - 1;
  }
  float total[R][MT] = {};
  for (int start = 0; start < PASSES; start += HELD) {
    if (start > 0) __syncthreads();
    // Lane l's 32 values of a pass lie as four eights, 32 eights apart: no conflicts.
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int at = turn * WARPS * 32 + threadIdx.x;
      if (at >= MT * EIGHTS) break;
      const int m = at / EIGHTS, eight = at % EIGHTS, word = eight % (PASS / 8);
      const int k = (start + eight / (PASS / 8)) * PASS + (word % 32) * 32 + (word / 32) * 8;
      Eight<T> some = {};
      if (m < rows && k < K) some = *reinterpret_cast<const Eight<T>*>(x + m * K + k);
      eights[at] = some;
      if (gain != nullptr) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(float(some.of[i]), float(some.of[i]), sum);
        sum = warp_sum(sum);
        if (lane == 0) squares[at / 32] = sum;
      }
    }
    if (gain != nullptr) {
      __syncthreads();
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int at = turn * WARPS * 32 + threadIdx.x;
        if (at >= MT * EIGHTS) break;
        const int m = at / EIGHTS, word = at % (PASS / 8);
        const int k = at % EIGHTS / (PASS / 8) * PASS + (word % 32) * 32 + (word / 32) * 8;
        if (k >= K) continue;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < EIGHTS / 32; ++i) sum += squares[m * (EIGHTS / 32) + i];
        const float scale = rsqrtf(sum / K + eps);
        Eight<T> some = eights[at];
        const Eight<T> by = *reinterpret_cast<const Eight<T>*>(gain + k);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          some.of[i] = T(float(some.of[i]) * scale * float(by.of[i]));
        eights[at] = some;
      }
    }
    __syncthreads();
    const int stop = start + HELD < PASSES ? start + HELD : PASSES;
#pragma unroll 2
    for (int pass = start; pass < stop; ++pass) {
      const int k = pass * PASS + lane * 32;
      if (k >= K) break;
      Packed<BITS> packed[R];
      float step[R] = {}, low[R] = {};
#pragma unroll
      for (int r = 0; r < R; ++r) {
        packed[r].read(w, (long long)from[r] * (K / 32) + k / 32);
        if constexpr (BITS < 16) {
          const long long group = (long long)from[r] * (K / GROUP) + k / GROUP;
          step[r] = float(scales[group]);
          low[r] = float(biases[group]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float value[R][8];
#pragma unroll
        for (int r = 0; r < R; ++r) packed[r].template unpack<T>(j, step[r], low[r], value[r]);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const Eight<T> some = eights[(m * HELD + pass - start) * (PASS / 8) + j * 32 + lane];
#pragma unroll
          for (int r = 0; r < R; ++r)
#pragma unroll
            for (int i = 0; i < 8; ++i)
              total[r][m] = fmaf(float(some.of[i]), value[r][i], total[r][m]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int r = 0; r < R; ++r) total[r][m] = warp_sum(total[r][m]);
    if (m >= rows || lane != 0) continue;
#pragma unroll
    for (int r = 0; r < R; r += GATED ? 2 : 1) {
      const int n = GATED ? first / 2 + r / 2 : first + r;
      if (n >= OUTS) continue;
      float v = float(T(total[r][m]));
      if constexpr (GATED) v = v / (1.f + expf(-v)) * float(T(total[r + (R > 1)][m]));
      if (added != nullptr) v += float(added[m * OUTS + n]);
      out[m * OUTS + n] = T(v);
    }
  }
}

} // namespace mlx::core::cu
