/* Memory bandwidth: reads of one array, and a triad over three.

   cc -O3 -march=native -pthread bandwidth.c -o bandwidth
   ./bandwidth MIB ROUNDS THREADS...

   MIB is the size of each array. Every round takes the numbers of threads in turn and prints one
   line for each: threads, GB/s read, GB/s triad (a[i] = b[i] + s * c[i], three arrays counted).
   Each thread works on the part of the arrays that it has written first. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_THREADS = 256, LANES = 32 };

typedef enum { FILL, READ, TRIAD } Work;

typedef struct {
    Work work;
    float *a, *b, *c;
    size_t count; /* elements of this thread's part, a multiple of LANES */
    uint32_t sum; /* of what was read: without a use the compiler drops the read */
} Part;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static uint32_t read_all(const uint32_t *words, size_t count) {
    uint32_t lanes[LANES] = {0}; /* independent sums, which the compiler keeps in vectors */
    for (size_t i = 0; i < count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) lanes[lane] ^= words[i + lane];
    uint32_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum ^= lanes[lane];
    return sum;
}

static void *run(void *argument) {
    Part *part = argument;
    float *restrict a = part->a;
    const float *restrict b = part->b, *restrict c = part->c;
    switch (part->work) {
    case FILL:
        for (size_t i = 0; i < part->count; i++) part->a[i] = 1, part->b[i] = 2, part->c[i] = 3;
        break;
    case READ:
        part->sum = read_all((const uint32_t *)part->b, part->count);
        break;
    case TRIAD:
        for (size_t i = 0; i < part->count; i++) a[i] = b[i] + 3.0f * c[i];
        break;
    }
    return NULL;
}

/* Time of one piece of work divided among threads; the caller is the first of them. */
static double timed(Work work, float *arrays[3], size_t count, int threads, uint32_t *sum) {
    static Part parts[MOST_THREADS];
    pthread_t started[MOST_THREADS];
    size_t each = count / threads / LANES * LANES;
    double before = seconds();
    for (int i = threads - 1; i >= 0; i--) {
        size_t at = each * i;
        parts[i] = (Part){work, arrays[0] + at, arrays[1] + at, arrays[2] + at, each, 0};
        if (i == 0)
            run(&parts[0]);
        else if (pthread_create(&started[i], NULL, run, &parts[i])) {
            fprintf(stderr, "thread %d could not be started\n", i);
            exit(1);
        }
    }
    for (int i = 1; i < threads; i++) pthread_join(started[i], NULL);
    double spent = seconds() - before;
    for (int i = 0; i < threads; i++) *sum ^= parts[i].sum;
    return spent;
}

int main(int arguments, char **values) {
    if (arguments < 4) {
        fprintf(stderr, "usage: %s MIB ROUNDS THREADS...\n", values[0]);
        return 2;
    }
    size_t mib = strtoul(values[1], NULL, 10), bytes = mib << 20, count = bytes / sizeof(float);
    int rounds = atoi(values[2]), most = 1;
    for (int i = 3; i < arguments; i++) {
        int threads = atoi(values[i]);
        if (threads < 1 || threads > MOST_THREADS) {
            fprintf(stderr, "threads: %s; allowed: 1 to %d\n", values[i], MOST_THREADS);
            return 2;
        }
        if (threads > most) most = threads;
    }
    float *arrays[3];
    for (int i = 0; i < 3; i++)
        if (mib == 0 || posix_memalign((void **)&arrays[i], 1 << 21, bytes)) {
            fprintf(stderr, "no memory for three arrays of %zu MiB\n", mib);
            return 1;
        }
    uint32_t sum = 0;
    timed(FILL, arrays, count, most, &sum);
    for (int round = 0; round < rounds; round++)
        for (int i = 3; i < arguments; i++) {
            int threads = atoi(values[i]);
            double used = (double)(count / threads / LANES * LANES) * threads * sizeof(float);
            double read = timed(READ, arrays, count, threads, &sum);
            double triad = timed(TRIAD, arrays, count, threads, &sum);
            printf("%d %.4f %.4f\n", threads, used / read / 1e9, 3 * used / triad / 1e9);
        }
    fprintf(stderr, "checksum %u\n", sum); /* keeps the reads */
    return 0;
}
