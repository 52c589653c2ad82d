/* Attention in C with the signature that attnlaws calls, and wrong variants of it, chosen by -D. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef T
#define T float
#define NAME attention
#endif

int NAME(const T *query, const T *key, const T *value, const T *mask, T *output, const int64_t sizes[7], double scale,
         int flags) {
    const int64_t B = sizes[0], H = sizes[1], Hkv = sizes[2], L = sizes[3], S = sizes[4], D = sizes[5], Dv = sizes[6];
    double *weights = malloc((S + 1) * sizeof(double));
#ifdef NO_SCALE
    scale = 1.0;
#endif
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
#ifdef TILED_GROUPS
            for (int64_t i = 0, g = b * Hkv + h % Hkv; i < L; i++) {
#else
            for (int64_t i = 0, g = b * Hkv + h / (H / Hkv); i < L; i++) {
#endif
                const int64_t row = (b * H + h) * L + i;
                double largest = -INFINITY, sum = 0.0;
#ifdef ONE_MORE
                const int64_t seen = flags & 1 ? i + 2 : S;
#else
                const int64_t seen = flags & 1 ? i + 1 : S;
#endif
                for (int64_t j = 0; j < S; j++) {
                    double score = 0.0;
                    for (int64_t c = 0; c < D; c++) score += (double)query[row * D + c] * key[(g * S + j) * D + c];
                    score *= scale;
#ifndef MASK_IGNORED
                    if (mask) score += mask[row * S + j];
#endif
                    weights[j] = j < seen ? score : -INFINITY;
                    if (weights[j] > largest) largest = weights[j];
                }
                for (int64_t j = 0; j < S; j++) {
                    weights[j] = largest > -INFINITY ? exp(weights[j] - largest) : 0.0;
                    sum += weights[j];
                }
#ifdef LAST_UNWRITTEN
                for (int64_t c = 0; c < Dv - (Dv > 3); c++) {
#else
                for (int64_t c = 0; c < Dv; c++) {
#endif
                    double total = 0.0;
                    for (int64_t j = 0; j < S; j++) if (weights[j] > 0) total += weights[j] * value[(g * S + j) * Dv + c];
                    output[row * Dv + c] = (T)(sum > 0 ? total / sum : 0.0);
                }
            }
    free(weights);
    return 0;
}

#ifndef DOUBLE
#define DOUBLE
#undef T
#undef NAME
#define T double
#define NAME attention_double
#include __FILE__
#endif
