#ifndef MLXCEL_SKINNY_H
#define MLXCEL_SKINNY_H

/* Most rows of a product that is computed here; wider ones go to BLAS. */
enum { SKINNY_ROWS = 16 };

/* Row-major C = A B^T (transposed) or C = A B of float32, A of m <= SKINNY_ROWS rows. */
void mlxcel_skinny(int transposed, int m, int n, int k, const float *a, int lda,
                   const float *b, int ldb, float *c, int ldc);

/* Threads that share a large product, the caller's included; before the first product. */
void mlxcel_skinny_threads(int count);

#endif
