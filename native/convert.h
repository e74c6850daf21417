// Scalar conversions that every level falls back on. Included by translation units built for different instruction
// sets: everything is in an anonymous namespace, so that the linker never picks an AVX copy for a plain CPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace shardmill {
namespace {

inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // Round to nearest even. NaN cannot occur: gain and bias are finite.
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline uint16_t to_float16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and up: infinity
    if (bits < 0x38800000) {                                             // below 2^-14: subnormal or zero
        // Adding 0.5 lines the ulp of the sum up with the subnormal's, so the FPU does the rounding.
        float magic;
        std::memcpy(&magic, &bits, 4);
        magic += 0.5f;
        uint32_t sum;
        std::memcpy(&sum, &magic, 4);
        return static_cast<uint16_t>(sign | (sum - 0x3f000000));
    }
    // Exponent bias 127 -> 15, mantissa 23 -> 10 bits, to nearest even; a carry into infinity is right as it is.
    bits += 0xc8000fff + ((bits >> 13) & 1);
    return static_cast<uint16_t>(sign | (bits >> 13));
}

inline uint8_t clamp_byte(int32_t value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }

inline void store_planar_scalar(const uint8_t *plane, void *out, int n, Dtype dtype, float gain, float bias) {
    switch (dtype) {
    case Dtype::kUint8: std::memcpy(out, plane, static_cast<size_t>(n)); break;
    case Dtype::kFloat32:
        for (int i = 0; i < n; ++i) static_cast<float *>(out)[i] = static_cast<float>(plane[i]) * gain + bias;
        break;
    case Dtype::kFloat16:
        for (int i = 0; i < n; ++i)
            static_cast<uint16_t *>(out)[i] = to_float16(static_cast<float>(plane[i]) * gain + bias);
        break;
    case Dtype::kBfloat16:
        for (int i = 0; i < n; ++i)
            static_cast<uint16_t *>(out)[i] = to_bfloat16(static_cast<float>(plane[i]) * gain + bias);
        break;
    }
}

inline void store_interleaved_scalar(const uint8_t *const planes[3], void *out, int n, const Layout &layout) {
    const uint8_t *p0 = planes[0], *p1 = planes[1], *p2 = planes[2];
    const float g0 = layout.gain[0], g1 = layout.gain[1], g2 = layout.gain[2];
    const float b0 = layout.bias[0], b1 = layout.bias[1], b2 = layout.bias[2];
    switch (layout.dtype) {
    case Dtype::kUint8: {
        auto *to = static_cast<uint8_t *>(out);
        for (int i = 0; i < n; ++i) {
            to[3 * i] = p0[i];
            to[3 * i + 1] = p1[i];
            to[3 * i + 2] = p2[i];
        }
        break;
    }
    case Dtype::kFloat32: {
        auto *to = static_cast<float *>(out);
        for (int i = 0; i < n; ++i) {
            to[3 * i] = static_cast<float>(p0[i]) * g0 + b0;
            to[3 * i + 1] = static_cast<float>(p1[i]) * g1 + b1;
            to[3 * i + 2] = static_cast<float>(p2[i]) * g2 + b2;
        }
        break;
    }
    case Dtype::kFloat16: {
        auto *to = static_cast<uint16_t *>(out);
        for (int i = 0; i < n; ++i) {
            to[3 * i] = to_float16(static_cast<float>(p0[i]) * g0 + b0);
            to[3 * i + 1] = to_float16(static_cast<float>(p1[i]) * g1 + b1);
            to[3 * i + 2] = to_float16(static_cast<float>(p2[i]) * g2 + b2);
        }
        break;
    }
    case Dtype::kBfloat16: {
        auto *to = static_cast<uint16_t *>(out);
        for (int i = 0; i < n; ++i) {
            to[3 * i] = to_bfloat16(static_cast<float>(p0[i]) * g0 + b0);
            to[3 * i + 1] = to_bfloat16(static_cast<float>(p1[i]) * g1 + b1);
            to[3 * i + 2] = to_bfloat16(static_cast<float>(p2[i]) * g2 + b2);
        }
        break;
    }
    }
}

}  // namespace
}  // namespace shardmill
