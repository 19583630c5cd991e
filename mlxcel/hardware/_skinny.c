/* Products of a few rows with a large matrix: what a decode or verify pass consists of.
 *
 * Two properties that a BLAS does not offer:
 * - a row's result is the same, bit for bit, whatever the number of rows: every dot product
 *   is accumulated in one order (16 lanes over k, the lanes pairwise, then the tail), so a
 *   verify pass computes what single steps compute;
 * - the matrix is read once for all rows, so several rows cost little more than one.
 *
 * Threads take chunks of columns from a ticket that counts down; a caller never waits for a
 * thread that has not begun, and a product that finds the pool taken runs alone.
 */

#include "_skinny.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

enum { LANES = 16, COLUMNS = 4, ROWS = 4, MOST_THREADS = 64 };
enum { CHUNK_FLOATS = 16384, SPINS = 4000 }; /* 64 KiB of the matrix; some 20 microseconds */

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef float half8 __attribute__((vector_size(32)));
typedef float half4 __attribute__((vector_size(16)));

#if defined(__x86_64__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int transposed, m, n, k, lda, ldb, ldc, step;
    const float *a, *b;
    float *c;
} job;

/* Lane i plus lane i + 8, then i + 4, i + 2, i + 1. */
INLINE float lane_sum(vec v)
{
    union { vec whole; half8 half[2]; } a = {v};
    union { half8 whole; half4 half[2]; } b = {a.half[0] + a.half[1]};
    half4 c = b.half[0] + b.half[1];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

static void add_tail(const job *j, int row, int column, int rows, int columns, int from)
{
    for (int r = row; r < row + rows; r++)
        for (int q = column; q < column + columns; q++) {
            float sum = j->c[(int64_t)r * j->ldc + q];
            for (int t = from; t < j->k; t++)
                sum += j->a[(int64_t)r * j->lda + t] * j->b[(int64_t)q * j->ldb + t];
            j->c[(int64_t)r * j->ldc + q] = sum;
        }
}

/* rows x columns dot products; both are constants where this is inlined. */
INLINE void dots(const job *j, int row, int column, int rows, int columns)
{
    const float *a = j->a + (int64_t)row * j->lda, *b = j->b + (int64_t)column * j->ldb;
    vec sums[ROWS][COLUMNS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int q = 0; q < columns; q++)
            sums[r][q] = (vec){0};
    int i = 0;
    for (; i + LANES <= j->k; i += LANES) {
        vec left[ROWS];
        for (int r = 0; r < rows; r++)
            left[r] = *(const vec *)(a + (int64_t)r * j->lda + i);
        for (int q = 0; q < columns; q++) {
            vec right = *(const vec *)(b + (int64_t)q * j->ldb + i);
            /* Of the next call, into L2: the sums at this one's end stop the stream. */
            __builtin_prefetch(b + (int64_t)(q + columns) * j->ldb + i, 0, 2);
            for (int r = 0; r < rows; r++)
                sums[r][q] += left[r] * right;
        }
    }
    /* Unrolled, or the sums would live in memory. */
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *c = j->c + (int64_t)(row + r) * j->ldc + column;
#pragma GCC unroll 4
        for (int q = 0; q < columns; q++)
            c[q] = lane_sum(sums[r][q]);
    }
    if (i < j->k)
        add_tail(j, row, column, rows, columns, i);
}

INLINE void dot_rows(const job *j, int column, int columns)
{
    int row = 0;
    for (; row + 4 <= j->m; row += 4)
        dots(j, row, column, 4, columns);
    switch (j->m - row) {
    case 3: dots(j, row, column, 3, columns); break;
    case 2: dots(j, row, column, 2, columns); break;
    case 1: dots(j, row, column, 1, columns); break;
    }
}

CLONES static void columns_transposed(const job *j, int begin, int end)
{
    for (; begin + COLUMNS <= end; begin += COLUMNS)
        dot_rows(j, begin, COLUMNS);
    for (; begin < end; begin++)
        dot_rows(j, begin, 1);
}

/* One row times 16 (or fewer) neighbouring columns of a matrix that is not transposed. */
INLINE void combine(const job *j, int row, int column, int width)
{
    const float *a = j->a + (int64_t)row * j->lda, *b = j->b + column;
    vec sum = {0};
    for (int i = 0; i < j->k; i++) {
        vec right = {0};
        if (width == LANES)
            right = *(const vec *)(b + (int64_t)i * j->ldb);
        else
            for (int q = 0; q < width; q++)
                right[q] = b[(int64_t)i * j->ldb + q];
        sum += a[i] * right;
    }
    float *c = j->c + (int64_t)row * j->ldc + column;
    for (int q = 0; q < width; q++)
        c[q] = sum[q];
}

CLONES static void columns_plain(const job *j, int begin, int end)
{
    for (; begin + LANES <= end; begin += LANES)
        for (int row = 0; row < j->m; row++)
            combine(j, row, begin, LANES);
    if (begin < end)
        for (int row = 0; row < j->m; row++)
            combine(j, row, begin, end - begin);
}

static void run_columns(const job *j, int begin, int end)
{
    if (j->transposed)
        columns_transposed(j, begin, end);
    else
        columns_plain(j, begin, end);
}

/* The pool. `ticket` is (job number << 32) | chunks not yet taken; whoever lowers it owns a
 * chunk of that job, and `current` cannot change before all owned chunks are done. */

static int wanted_threads = 1;
static int started;
static job current;
static _Atomic uint64_t ticket;
static atomic_int done, sleepers;
static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int open_chunks(void)
{
    return (int)(atomic_load(&ticket) & 0xffffffff);
}

static int take_and_run(void)
{
    uint64_t seen = atomic_load(&ticket);
    while ((seen & 0xffffffff) != 0) {
        if (!atomic_compare_exchange_weak(&ticket, &seen, seen - 1))
            continue;
        int begin = ((int)(seen & 0xffffffff) - 1) * current.step;
        int end = begin + current.step < current.n ? begin + current.step : current.n;
        run_columns(&current, begin, end);
        atomic_fetch_add(&done, 1);
        return 1;
    }
    return 0;
}

static void *work(void *unused)
{
    (void)unused;
    for (;;) {
        while (take_and_run()) {
        }
        for (int i = 0; i < SPINS && !open_chunks(); i++)
            pause_briefly();
        if (open_chunks())
            continue;
        pthread_mutex_lock(&sleeping);
        atomic_fetch_add(&sleepers, 1);
        while (!open_chunks())
            pthread_cond_wait(&wake, &sleeping);
        atomic_fetch_sub(&sleepers, 1);
        pthread_mutex_unlock(&sleeping);
    }
    return NULL;
}

static void start(void)
{
    started = 1;
    for (int i = 1; i < wanted_threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0)
            break; /* fewer threads compute the same */
        pthread_detach(thread);
    }
}

static void share(const job *j, int chunks)
{
    if (!started)
        start();
    current = *j;
    atomic_store(&done, 0);
    uint64_t number = (atomic_load(&ticket) >> 32) + 1;
    atomic_store(&ticket, number << 32 | (uint32_t)chunks);
    if (atomic_load(&sleepers) > 0) {
        pthread_mutex_lock(&sleeping);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleeping);
    }
    while (take_and_run()) {
    }
    for (int i = 0; atomic_load(&done) < chunks; i++) {
        if (i < SPINS)
            pause_briefly();
        else
            sched_yield();
    }
}

void mlxcel_skinny_threads(int count)
{
    wanted_threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

void mlxcel_skinny(int transposed, int m, int n, int k, const float *a, int lda,
                   const float *b, int ldb, float *c, int ldc)
{
    job j = {transposed, m, n, k, lda, ldb, ldc, n, a, b, c};
    int64_t floats = (int64_t)n * k;
    if (wanted_threads > 1 && floats >= 2 * CHUNK_FLOATS) {
        int64_t step = (int64_t)n * CHUNK_FLOATS / floats;
        j.step = (int)((step < LANES ? LANES : step) / LANES * LANES);
        int chunks = (n + j.step - 1) / j.step;
        if (chunks > 1 && pthread_mutex_trylock(&taken) == 0) {
            share(&j, chunks);
            pthread_mutex_unlock(&taken);
            return;
        }
    }
    run_columns(&j, 0, n);
}
