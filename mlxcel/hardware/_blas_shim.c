/* The three matrix products that libmlx.so takes from BLAS, served by scipy-openblas32, but
 * for float32 products of a few rows, which _skinny.c computes.
 *
 * That library's symbols are prefixed (scipy_cblas_sgemm), so it cannot serve MLX by itself.
 * Loaded with RTLD_GLOBAL before MLX, the names here come first in the dynamic linker's search
 * order. mlxcel_blas_open must have returned 0 before the names are made global.
 *
 * Threads: open once, from one thread; the products may be called from any.
 */

#include "_skinny.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

typedef void sgemm_fn(int, int, int, int, int, int, float, const float *, int,
                      const float *, int, float, float *, int);
typedef void dgemm_fn(int, int, int, int, int, int, double, const double *, int,
                      const double *, int, double, double *, int);
typedef void cgemm_fn(int, int, int, int, int, int, const void *, const void *, int,
                      const void *, int, const void *, void *, int);

static sgemm_fn *sgemm;
static dgemm_fn *dgemm;
static cgemm_fn *cgemm;
static const char *failure;
static atomic_ullong calls;

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of cblas.h */
enum { OPENED = 0, NO_LIBRARY = 1, NO_SYMBOL = 2 };

/* POSIX lets dlsym's object pointer be read as a function pointer; ISO C has no cast for it. */
static int find(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        failure = dlerror();
        return NO_SYMBOL;
    }
    *(void **)slot = symbol;
    return OPENED;
}

int mlxcel_blas_open(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        failure = dlerror();
        return NO_LIBRARY;
    }
    int status = find(library, "scipy_cblas_sgemm", &sgemm);
    if (status == OPENED)
        status = find(library, "scipy_cblas_dgemm", &dgemm);
    if (status == OPENED)
        status = find(library, "scipy_cblas_cgemm", &cgemm);
    return status;
}

/* Text of the last failure, valid until the next dl* call of this thread. */
const char *mlxcel_blas_error(void)
{
    return failure == NULL ? "" : failure;
}

unsigned long long mlxcel_blas_calls(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

static void count(void)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta,
                 float *c, int ldc)
{
    count();
    if (order == ROW_MAJOR && ta == NO_TRANS && (tb == TRANS || tb == NO_TRANS) &&
        m <= SKINNY_ROWS && alpha == 1.0f && beta == 0.0f) {
        mlxcel_skinny(tb == TRANS, m, n, k, a, lda, b, ldb, c, ldc);
        return;
    }
    sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha,
                 const double *a, int lda, const double *b, int ldb, double beta,
                 double *c, int ldc)
{
    count();
    dgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int ta, int tb, int m, int n, int k, const void *alpha,
                 const void *a, int lda, const void *b, int ldb, const void *beta,
                 void *c, int ldc)
{
    count();
    cgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
