// The inner loops for AVX-512 (F, BW, VL, DQ). Built with those flags; runs only where the CPU has them.
#include <immintrin.h>

#include "convert.h"

#define SHARDMILL_WIDE
#include "planes.h"
#include "scan_loops.h"

namespace shardmill {
namespace {

constexpr int kOneWindow = 0, kTwoWindows = 1, kGather = 2;

inline int32_t load_pair(const int16_t *weight) {
    int32_t pair;
    std::memcpy(&pair, weight, 4);
    return pair;
}

void split(const uint8_t *rgbx, uint8_t *r, uint8_t *g, uint8_t *b, int n) {
    const __m512i within = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int i = 0; i < n; i += 16) {
        __m512i pixels = _mm512_loadu_si512(rgbx + 4 * i);
        pixels = _mm512_permutexvar_epi32(across, _mm512_shuffle_epi8(pixels, within));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(r + i), _mm512_castsi512_si128(pixels));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(g + i), _mm512_extracti32x4_epi32(pixels, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(b + i), _mm512_extracti32x4_epi32(pixels, 2));
    }
}

inline __m512i widen(const uint8_t *from) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}

// What planes.h is written in.
struct Avx512 {
    using I = __m512i;
    static I load16(const int16_t *from) { return _mm512_load_si512(from); }
    static I load8(const uint8_t *from) { return widen(from); }
    static void store8(uint8_t *to, I x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to),
                            _mm512_cvtusepi16_epi8(_mm512_max_epi16(x, _mm512_setzero_si512())));
    }
    static I set16(int x) { return _mm512_set1_epi16(static_cast<int16_t>(x)); }
    static I set32(int x) { return _mm512_set1_epi32(x); }
    static I pairs(int a, int b) { return _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(b) << 16 | (a & 0xffff))); }
    static I add16(I a, I b) { return _mm512_add_epi16(a, b); }
    static I adds16(I a, I b) { return _mm512_adds_epi16(a, b); }
    static I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }
    static I mulhi16(I a, I b) { return _mm512_mulhi_epi16(a, b); }
    static I shift16(I a, int n) { return _mm512_srai_epi16(a, n); }
    static I add32(I a, I b) { return _mm512_add_epi32(a, b); }
    static I sub32(I a, I b) { return _mm512_sub_epi32(a, b); }
    static I shift32(I a, int n) { return _mm512_srai_epi32(a, n); }
    static I madd(I a, I b) { return _mm512_madd_epi16(a, b); }
    static I pack32(I a, I b) { return _mm512_packs_epi32(a, b); }
    static I low16(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
    static I high16(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
    static I low32(I a, I b) { return _mm512_unpacklo_epi32(a, b); }
    static I high32(I a, I b) { return _mm512_unpackhi_epi32(a, b); }
    static I low64(I a, I b) { return _mm512_unpacklo_epi64(a, b); }
    static I high64(I a, I b) { return _mm512_unpackhi_epi64(a, b); }
};

// Pairs == 0: the number of pairs is only known at run time.
template <int Pairs>
void vertical_pairs(const uint8_t *const *rows, const int16_t *weight, int pairs, int16_t *out, int n) {
    if (Pairs != 0) pairs = Pairs;
    const __m512i half = _mm512_set1_epi32(1 << (kVerticalShift - 1));
    for (int i = 0; i < n; i += 64) {
        __m512i low0 = half, high0 = half, low1 = half, high1 = half;
#pragma GCC unroll 4
        for (int k = 0; k < pairs; ++k) {
            const __m512i w = _mm512_set1_epi32(load_pair(weight + 2 * k));
            const uint8_t *above = rows[2 * k] + i, *below = rows[2 * k + 1] + i;
            const __m512i a0 = widen(above), b0 = widen(below), a1 = widen(above + 32), b1 = widen(below + 32);
            low0 = _mm512_add_epi32(low0, _mm512_madd_epi16(_mm512_unpacklo_epi16(a0, b0), w));
            high0 = _mm512_add_epi32(high0, _mm512_madd_epi16(_mm512_unpackhi_epi16(a0, b0), w));
            low1 = _mm512_add_epi32(low1, _mm512_madd_epi16(_mm512_unpacklo_epi16(a1, b1), w));
            high1 = _mm512_add_epi32(high1, _mm512_madd_epi16(_mm512_unpackhi_epi16(a1, b1), w));
        }
        // unpack and pack both work within 128-bit lanes, so together they keep the order.
        _mm512_store_si512(out + i, _mm512_packs_epi32(_mm512_srai_epi32(low0, kVerticalShift),
                                                       _mm512_srai_epi32(high0, kVerticalShift)));
        _mm512_store_si512(out + i + 32, _mm512_packs_epi32(_mm512_srai_epi32(low1, kVerticalShift),
                                                            _mm512_srai_epi32(high1, kVerticalShift)));
    }
}

void vertical(const uint8_t *const *rows, const int16_t *weight, int taps, int16_t *out, int n) {
    switch (taps / 2) {
    case 1: return vertical_pairs<1>(rows, weight, 1, out, n);
    case 2: return vertical_pairs<2>(rows, weight, 2, out, n);
    case 3: return vertical_pairs<3>(rows, weight, 3, out, n);
    default: return vertical_pairs<0>(rows, weight, taps / 2, out, n);
    }
}

void pack(HorizontalPlan &plan) {
    const int pairs = plan.taps / 2;
    int span = 0;
    for (int x = 0; x < plan.outputs; x += 16) {
        int low = plan.start[x], high = low;
        for (int i = 1; i < 16; ++i) {
            const int s = plan.start[x + i];
            low = s < low ? s : low;
            high = s > high ? s : high;
        }
        plan.base[x / 16] = low;
        span = high - low + 1 > span ? high - low + 1 : span;
        auto *index = reinterpret_cast<uint16_t *>(plan.index + 4 * x);
        for (int i = 0; i < 16; ++i) {
            index[2 * i] = static_cast<uint16_t>(plan.start[x + i] - low);
            index[2 * i + 1] = static_cast<uint16_t>(plan.start[x + i] - low + 1);
        }
        int16_t *to = plan.packed + static_cast<size_t>(x) * plan.taps;
        for (int k = 0; k < pairs; ++k)
            for (int i = 0; i < 16; ++i)
                std::memcpy(to + (k * 16 + i) * 2, plan.weight + static_cast<size_t>(x + i) * plan.taps + 2 * k, 4);
    }
    plan.mode = span <= 31 ? kOneWindow : span <= 63 ? kTwoWindows : kGather;
}

template <int Mode> void horizontal_mode(const int16_t *in, const HorizontalPlan &plan, uint8_t *out) {
    const int pairs = plan.taps / 2;
    const int16_t *weight = plan.packed;
    for (int x = 0; x < plan.outputs; x += 16) {
        __m512i sum = _mm512_set1_epi32(1 << (kHorizontalShift - 1));
        const int16_t *from = in + plan.base[x / 16];
        const __m512i index = Mode == kGather ? _mm512_loadu_si512(plan.start + x)
                                              : _mm512_loadu_si512(plan.index + 4 * x);
        for (int k = 0; k < pairs; ++k, weight += 32) {
            __m512i taps;
            if (Mode == kGather) {
                taps = _mm512_i32gather_epi32(index, in + 2 * k, 2);
            } else if (Mode == kOneWindow) {
                taps = _mm512_permutexvar_epi16(index, _mm512_loadu_si512(from + 2 * k));
            } else {
                taps = _mm512_permutex2var_epi16(_mm512_loadu_si512(from + 2 * k), index,
                                                 _mm512_loadu_si512(from + 2 * k + 32));
            }
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(taps, _mm512_loadu_si512(weight)));
        }
        sum = _mm512_max_epi32(_mm512_srai_epi32(sum, kHorizontalShift), _mm512_setzero_si512());
        _mm_store_si128(reinterpret_cast<__m128i *>(out + x), _mm512_cvtusepi32_epi8(sum));
    }
}

void horizontal(const int16_t *in, const HorizontalPlan &plan, uint8_t *out) {
    if (plan.mode == kOneWindow) return horizontal_mode<kOneWindow>(in, plan, out);
    if (plan.mode == kTwoWindows) return horizontal_mode<kTwoWindows>(in, plan, out);
    return horizontal_mode<kGather>(in, plan, out);
}

inline __m512 scaled(const uint8_t *plane, __m512 gain, __m512 bias) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(plane)));
    return _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(wide), gain), bias);
}

inline __m256i as_bfloat16(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

void store_planar(const uint8_t *plane, void *out, int n, Dtype dtype, float gain, float bias) {
    const __m512 g = _mm512_set1_ps(gain), b = _mm512_set1_ps(bias);
    int i = 0;
    if (dtype == Dtype::kFloat32) {
        auto *to = static_cast<float *>(out);
        for (; i + 16 <= n; i += 16) _mm512_storeu_ps(to + i, scaled(plane + i, g, b));
        store_planar_scalar(plane + i, to + i, n - i, dtype, gain, bias);
    } else if (dtype == Dtype::kUint8) {
        std::memcpy(out, plane, static_cast<size_t>(n));
    } else {
        auto *to = static_cast<uint16_t *>(out);
        for (; i + 16 <= n; i += 16) {
            const __m512 value = scaled(plane + i, g, b);
            const __m256i narrow = dtype == Dtype::kFloat16
                                       ? _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                       : as_bfloat16(value);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i), narrow);
        }
        store_planar_scalar(plane + i, to + i, n - i, dtype, gain, bias);
    }
}

}  // namespace

const Kernels kAvx512Kernels = {"avx512",
                              split,
                              skip_mcus,
                              decode_mcu_row<wide_inverse_dct<Avx512>>,
                              upsample_2x1_plain,
                              upsample_2x2_plain,
                              wide_to_rgb<Avx512>,
                              vertical,
                              pack,
                              horizontal,
                              store_planar,
                              store_interleaved_scalar};

}  // namespace shardmill
