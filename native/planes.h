// From coefficients to RGB: inverse DCT, chroma upsampling, colour conversion. The arithmetic is libjpeg's (islow DCT,
// "fancy" upsampling), so that both decoders give the same pixels. Included by translation units built for different
// instruction sets: all in an anonymous namespace. Plain loops, which compilers vectorise, and the wide versions that
// they do not find: templates over the vectors of wide.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace shardmill {
namespace {

// 13 fraction bits.
constexpr int kF0298 = 2446, kF0390 = 3196, kF0541 = 4433, kF0765 = 6270, kF0899 = 7373, kF1175 = 9633, kF1501 = 12299,
              kF1847 = 15137, kF1961 = 16069, kF2053 = 16819, kF2562 = 20995, kF3072 = 25172;
constexpr int kDctBits = 13, kPass1Bits = 2;
constexpr int kShift1 = kDctBits - kPass1Bits, kShift2 = kDctBits + kPass1Bits + 3;

// How odd inputs 1, 3, 5, 7 (columns) make the odd parts of outputs 3, 2, 1, 0 (rows): Loeffler, Ligtenberg and
// Moschytz's 8-point DCT multiplied out, for instructions that multiply and add pairs.
constexpr int kOdd[4][4] = {
    {-kF0899 + kF1175, -kF1961 + kF1175, kF1175, kF0298 - kF0899 - kF1961 + kF1175},
    {-kF0390 + kF1175, -kF2562 + kF1175, kF2053 - kF2562 - kF0390 + kF1175, kF1175},
    {kF1175, kF3072 - kF2562 - kF1961 + kF1175, -kF2562 + kF1175, -kF1961 + kF1175},
    {kF1501 - kF0899 - kF0390 + kF1175, kF1175, -kF0390 + kF1175, -kF0899 + kF1175},
};

// One 8-point transform. Unsigned, so that damaged data may overflow without undefined behaviour.
inline void transform(const int32_t in[8], int32_t out[8], int shift) {
    auto u = [&](int i) { return static_cast<uint32_t>(in[i]); };
    const uint32_t half = 1u << (shift - 1);
    const uint32_t t0 = ((u(0) + u(4)) << kDctBits) + half, t1 = ((u(0) - u(4)) << kDctBits) + half;
    const uint32_t t3 = u(2) * (kF0541 + kF0765) + u(6) * kF0541;
    const uint32_t t2 = u(2) * kF0541 + u(6) * static_cast<uint32_t>(kF0541 - kF1847);
    const uint32_t even[4] = {t0 + t3, t1 + t2, t1 - t2, t0 - t3};
    for (int i = 0; i < 4; ++i) {
        uint32_t odd = 0;
        for (int j = 0; j < 4; ++j) odd += u(2 * j + 1) * static_cast<uint32_t>(kOdd[3 - i][j]);
        out[i] = static_cast<int32_t>(even[i] + odd) >> shift;
        out[7 - i] = static_cast<int32_t>(even[i] - odd) >> shift;
    }
}

inline void inverse_dct_scalar(const int16_t *coefficients, uint8_t *out, int stride) {
    for (int b = 0; b < kGroupBlocks; ++b) {
        int32_t middle[8][8], in[8], result[8];
        for (int x = 0; x < 8; ++x) {
            for (int y = 0; y < 8; ++y) in[y] = coefficients[(y * kGroupBlocks + b) * 8 + x];
            transform(in, result, kShift1);
            for (int y = 0; y < 8; ++y)  // kept in 16 bits by the vectors
                middle[y][x] = result[y] < -32768 ? -32768 : result[y] > 32767 ? 32767 : result[y];
        }
        for (int y = 0; y < 8; ++y) {
            transform(middle[y], result, kShift2);
            for (int x = 0; x < 8; ++x) {
                const int32_t value = result[x] + 128;
                out[static_cast<ptrdiff_t>(y) * stride + 8 * b + x] =
                    static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
            }
        }
    }
}

// Triangle filter: each new sample is 3/4 of the nearer and 1/4 of the further one, per axis. row[-1] and row[n] are
// there. Alternating rounding, so that it does not drift.
inline void upsample_2x1_plain(const uint8_t *row, uint8_t *out, int n) {
    for (int i = 0; i < n; ++i) {
        out[2 * i] = static_cast<uint8_t>((3 * row[i] + row[i - 1] + 1) >> 2);
        out[2 * i + 1] = static_cast<uint8_t>((3 * row[i] + row[i + 1] + 2) >> 2);
    }
}

inline void upsample_2x2_plain(const uint8_t *near, const uint8_t *far, uint8_t *out, int n) {
    for (int i = 0; i < n; ++i) {
        const int before = 3 * near[i - 1] + far[i - 1], here = 3 * near[i] + far[i],
                  after = 3 * near[i + 1] + far[i + 1];
        out[2 * i] = static_cast<uint8_t>((3 * here + before + 8) >> 4);
        out[2 * i + 1] = static_cast<uint8_t>((3 * here + after + 7) >> 4);
    }
}

inline uint8_t clamp_sample(int value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }

// JFIF's YCbCr (ITU-R BT.601, full range), 16 fraction bits.
inline void to_rgb_plain(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *r, uint8_t *g, uint8_t *b,
                         int n) {
    for (int i = 0; i < n; ++i) {
        const int blue = cb[i] - 128, red = cr[i] - 128;
        r[i] = clamp_sample(y[i] + ((91881 * red + 32768) >> 16));
        g[i] = clamp_sample(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        b[i] = clamp_sample(y[i] + ((116130 * blue + 32768) >> 16));
    }
}

#if defined(SHARDMILL_WIDE)

// V::I has 16-bit lanes; each 128-bit part holds 8 neighbouring columns of one block.
template <class V> inline void wide_transform(typename V::I x[8], int shift) {
    using I = typename V::I;
    const I half = V::set32(1 << (shift - 1));
    I sums[2][8];
    for (int part = 0; part < 2; ++part) {
        auto pair = [&](int a, int b) { return part == 0 ? V::low16(x[a], x[b]) : V::high16(x[a], x[b]); };
        const I x04 = pair(0, 4), x26 = pair(2, 6), x13 = pair(1, 3), x57 = pair(5, 7);
        const I t0 = V::add32(V::madd(x04, V::pairs(1 << kDctBits, 1 << kDctBits)), half);
        const I t1 = V::add32(V::madd(x04, V::pairs(1 << kDctBits, -(1 << kDctBits))), half);
        const I t3 = V::madd(x26, V::pairs(kF0541 + kF0765, kF0541));
        const I t2 = V::madd(x26, V::pairs(kF0541, kF0541 - kF1847));
        const I even[4] = {V::add32(t0, t3), V::add32(t1, t2), V::sub32(t1, t2), V::sub32(t0, t3)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int *odd = kOdd[3 - i];
            const I sum = V::add32(V::madd(x13, V::pairs(odd[0], odd[1])), V::madd(x57, V::pairs(odd[2], odd[3])));
            sums[part][i] = V::shift32(V::add32(even[i], sum), shift);
            sums[part][7 - i] = V::shift32(V::sub32(even[i], sum), shift);
        }
    }
    for (int i = 0; i < 8; ++i) x[i] = V::pack32(sums[0][i], sums[1][i]);
}

template <class V> inline void wide_transpose(typename V::I x[8]) {
    using I = typename V::I;
    I a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = V::low16(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = V::high16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
            b[4 * i + 2 * j] = V::low32(a[4 * i + j], a[4 * i + j + 2]);
            b[4 * i + 2 * j + 1] = V::high32(a[4 * i + j], a[4 * i + j + 2]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = V::low64(b[i], b[i + 4]);
        x[2 * i + 1] = V::high64(b[i], b[i + 4]);
    }
}

template <class V> void wide_inverse_dct(const int16_t *coefficients, uint8_t *out, int stride) {
    constexpr int kLanes = sizeof(typename V::I) / 2;
    for (int at = 0; at < kGroupBlocks * 8; at += kLanes) {
        typename V::I x[8];
        for (int y = 0; y < 8; ++y) x[y] = V::load16(coefficients + y * kGroupBlocks * 8 + at);
        wide_transform<V>(x, kShift1);
        wide_transpose<V>(x);
        wide_transform<V>(x, kShift2);
        wide_transpose<V>(x);
        for (int y = 0; y < 8; ++y)
            V::store8(out + static_cast<ptrdiff_t>(y) * stride + at, V::adds16(x[y], V::set16(128)));
    }
}

// May read and write up to kSlack past n. The products are split so that each fits 16 bits: 1.402 is 1 + 0.402,
// 1.772 is 2 - 0.228, -0.714 is -1 + 0.286; rounding stays exact.
template <class V>
void wide_to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *r, uint8_t *g, uint8_t *b, int n) {
    using I = typename V::I;
    constexpr int kLanes = sizeof(I) / 2;
    const I middle = V::set16(128), one = V::set16(1), half = V::set32(32768);
    for (int i = 0; i < n; i += kLanes) {
        const I luma = V::load8(y + i), blue = V::sub16(V::load8(cb + i), middle),
                red = V::sub16(V::load8(cr + i), middle);
        const I blue2 = V::add16(blue, blue), red2 = V::add16(red, red);
        const I more_red = V::shift16(V::add16(V::mulhi16(red2, V::set16(26345)), one), 1);
        const I less_blue = V::shift16(V::add16(V::mulhi16(blue2, V::set16(-14942)), one), 1);
        const I weights = V::pairs(-22554, 65536 - 46802);
        const I low = V::shift32(V::add32(V::madd(V::low16(blue, red), weights), half), 16);
        const I high = V::shift32(V::add32(V::madd(V::high16(blue, red), weights), half), 16);
        V::store8(r + i, V::add16(luma, V::add16(red, more_red)));
        V::store8(g + i, V::add16(luma, V::sub16(V::pack32(low, high), red)));
        V::store8(b + i, V::add16(luma, V::add16(blue2, less_blue)));
    }
}

#endif

}  // namespace
}  // namespace shardmill
