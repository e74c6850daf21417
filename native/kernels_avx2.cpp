// The inner loops for AVX2 and F16C. Built with those flags; runs only where the CPU has them.
#include <immintrin.h>

#include "convert.h"

#define SHARDMILL_WIDE
#include "planes.h"
#include "scan_loops.h"

namespace shardmill {
namespace {

constexpr int kWindows = 0, kGather = 1;

inline int32_t load_pair(const int16_t *weight) {
    int32_t pair;
    std::memcpy(&pair, weight, 4);
    return pair;
}

void split(const uint8_t *rgbx, uint8_t *r, uint8_t *g, uint8_t *b, int n) {
    const __m256i within =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int i = 0; i < n; i += 8) {
        __m256i pixels = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(rgbx + 4 * i));
        pixels = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, within), across);
        const __m128i rg = _mm256_castsi256_si128(pixels);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(r + i), rg);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(g + i), _mm_unpackhi_epi64(rg, rg));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(b + i), _mm256_extracti128_si256(pixels, 1));
    }
}

inline __m256i widen(const uint8_t *from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

// What planes.h is written in.
struct Avx2 {
    using I = __m256i;
    static I load16(const int16_t *from) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(from)); }
    static I load8(const uint8_t *from) { return widen(from); }
    static void store8(uint8_t *to, I x) {
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(x, x), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(bytes));
    }
    static I set16(int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }
    static I set32(int x) { return _mm256_set1_epi32(x); }
    static I pairs(int a, int b) { return _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(b) << 16 | (a & 0xffff))); }
    static I add16(I a, I b) { return _mm256_add_epi16(a, b); }
    static I adds16(I a, I b) { return _mm256_adds_epi16(a, b); }
    static I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
    static I mulhi16(I a, I b) { return _mm256_mulhi_epi16(a, b); }
    static I shift16(I a, int n) { return _mm256_srai_epi16(a, n); }
    static I add32(I a, I b) { return _mm256_add_epi32(a, b); }
    static I sub32(I a, I b) { return _mm256_sub_epi32(a, b); }
    static I shift32(I a, int n) { return _mm256_srai_epi32(a, n); }
    static I madd(I a, I b) { return _mm256_madd_epi16(a, b); }
    static I pack32(I a, I b) { return _mm256_packs_epi32(a, b); }
    static I low16(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
    static I high16(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
    static I low32(I a, I b) { return _mm256_unpacklo_epi32(a, b); }
    static I high32(I a, I b) { return _mm256_unpackhi_epi32(a, b); }
    static I low64(I a, I b) { return _mm256_unpacklo_epi64(a, b); }
    static I high64(I a, I b) { return _mm256_unpackhi_epi64(a, b); }
};

void vertical(const uint8_t *const *rows, const int16_t *weight, int taps, int16_t *out, int n) {
    const __m256i half = _mm256_set1_epi32(1 << (kVerticalShift - 1));
    for (int i = 0; i < n; i += 32) {
        __m256i low0 = half, high0 = half, low1 = half, high1 = half;
        for (int k = 0; k < taps; k += 2) {
            const __m256i w = _mm256_set1_epi32(load_pair(weight + k));
            const uint8_t *above = rows[k] + i, *below = rows[k + 1] + i;
            const __m256i a0 = widen(above), b0 = widen(below), a1 = widen(above + 16), b1 = widen(below + 16);
            low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(_mm256_unpacklo_epi16(a0, b0), w));
            high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(_mm256_unpackhi_epi16(a0, b0), w));
            low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(_mm256_unpacklo_epi16(a1, b1), w));
            high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(_mm256_unpackhi_epi16(a1, b1), w));
        }
        // unpack and pack both work within 128-bit lanes, so together they keep the order.
        _mm256_store_si256(reinterpret_cast<__m256i *>(out + i),
                           _mm256_packs_epi32(_mm256_srai_epi32(low0, kVerticalShift),
                                              _mm256_srai_epi32(high0, kVerticalShift)));
        _mm256_store_si256(reinterpret_cast<__m256i *>(out + i + 16),
                           _mm256_packs_epi32(_mm256_srai_epi32(low1, kVerticalShift),
                                              _mm256_srai_epi32(high1, kVerticalShift)));
    }
}

void pack(HorizontalPlan &plan) {
    const int pairs = plan.taps / 2;
    int span = 0;
    // One byte shuffle picks the pairs of 4 outputs from 8 neighbouring samples.
    for (int x = 0; x < plan.outputs; x += 4) {
        int low = plan.start[x], high = low;
        for (int i = 1; i < 4; ++i) {
            const int s = plan.start[x + i];
            low = s < low ? s : low;
            high = s > high ? s : high;
        }
        plan.base[x / 4] = low;
        span = high - low + 1 > span ? high - low + 1 : span;
        for (int i = 0; i < 4; ++i)
            for (int byte = 0; byte < 4; ++byte)
                plan.index[4 * (x + i) + byte] = static_cast<uint8_t>(2 * (plan.start[x + i] - low) + byte);
    }
    for (int x = 0; x < plan.outputs; x += 8) {
        int16_t *to = plan.packed + static_cast<size_t>(x) * plan.taps;
        for (int k = 0; k < pairs; ++k)
            for (int i = 0; i < 8; ++i)
                std::memcpy(to + (k * 8 + i) * 2, plan.weight + static_cast<size_t>(x + i) * plan.taps + 2 * k, 4);
    }
    plan.mode = span <= 7 ? kWindows : kGather;
}

template <int Mode> void horizontal_mode(const int16_t *in, const HorizontalPlan &plan, uint8_t *out) {
    const int pairs = plan.taps / 2;
    const int16_t *weight = plan.packed;
    for (int x = 0; x < plan.outputs; x += 8) {
        __m256i sum = _mm256_set1_epi32(1 << (kHorizontalShift - 1));
        const int16_t *left = in + plan.base[x / 4], *right = in + plan.base[x / 4 + 1];
        const __m256i index = _mm256_loadu_si256(Mode == kGather
                                                     ? reinterpret_cast<const __m256i *>(plan.start + x)
                                                     : reinterpret_cast<const __m256i *>(plan.index + 4 * x));
        for (int k = 0; k < pairs; ++k, weight += 16) {
            __m256i taps;
            if (Mode == kGather) {
                taps = _mm256_i32gather_epi32(reinterpret_cast<const int *>(in + 2 * k), index, 2);
            } else {
                taps = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(left + 2 * k)));
                taps = _mm256_inserti128_si256(
                    taps, _mm_loadu_si128(reinterpret_cast<const __m128i *>(right + 2 * k)), 1);
                taps = _mm256_shuffle_epi8(taps, index);
            }
            const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(weight));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(taps, w));
        }
        sum = _mm256_srai_epi32(sum, kHorizontalShift);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + x), _mm_packus_epi16(words, words));
    }
}

void horizontal(const int16_t *in, const HorizontalPlan &plan, uint8_t *out) {
    if (plan.mode == kWindows) return horizontal_mode<kWindows>(in, plan, out);
    return horizontal_mode<kGather>(in, plan, out);
}

inline __m256 scaled(const uint8_t *plane, __m256 gain, __m256 bias) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(plane)));
    return _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(wide), gain), bias);
}

inline __m128i as_bfloat16(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i top = _mm256_srli_epi32(rounded, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}

void store_planar(const uint8_t *plane, void *out, int n, Dtype dtype, float gain, float bias) {
    const __m256 g = _mm256_set1_ps(gain), b = _mm256_set1_ps(bias);
    int i = 0;
    if (dtype == Dtype::kFloat32) {
        auto *to = static_cast<float *>(out);
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, scaled(plane + i, g, b));
        store_planar_scalar(plane + i, to + i, n - i, dtype, gain, bias);
    } else if (dtype == Dtype::kUint8) {
        std::memcpy(out, plane, static_cast<size_t>(n));
    } else {
        auto *to = static_cast<uint16_t *>(out);
        for (; i + 8 <= n; i += 8) {
            const __m256 value = scaled(plane + i, g, b);
            const __m128i narrow = dtype == Dtype::kFloat16
                                       ? _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                       : as_bfloat16(value);
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i), narrow);
        }
        store_planar_scalar(plane + i, to + i, n - i, dtype, gain, bias);
    }
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2",
                              split,
                              skip_mcus,
                              decode_mcu_row<wide_inverse_dct<Avx2>>,
                              upsample_2x1_plain,
                              upsample_2x2_plain,
                              wide_to_rgb<Avx2>,
                              vertical,
                              pack,
                              horizontal,
                              store_planar,
                              store_interleaved_scalar};

}  // namespace shardmill
