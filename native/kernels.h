// The inner loops, once per instruction set. All levels do the same integer and (uncontracted) float arithmetic, so
// they give equal bits; tests compare them.
#pragma once

#include <cstdint>

#include "image.h"

namespace shardmill {

struct Scan;  // scan.h

// Fixed point: weights have 14 fraction bits, samples between the passes 6. Bilinear stays within 0..255; bicubic
// overshoots by less than a third on either side, and 255 * 64 * 1.34 still fits an int16.
constexpr int kWeightBits = 14;
constexpr int kMidBits = 6;
constexpr int kVerticalShift = kWeightBits - kMidBits;
constexpr int kHorizontalShift = kWeightBits + kMidBits;

// Rows are processed in whole vectors: buffers are readable and writable this many elements past their end.
constexpr int kSlack = 128;
constexpr int kVectorOutputs = 16;

// Coefficients (64-byte aligned, dequantised) are transformed kGroupBlocks neighbouring blocks at a time: row y of block b is at (y * kGroupBlocks + b)
// * 8. kGroupSpare, relative to a block's first element, is past all of them: where nothing is to be kept.
constexpr int kGroupBlocks = 4;
constexpr int kGroupSpare = 64 * kGroupBlocks;
constexpr int kGroupSize = kGroupSpare + 8 * kGroupBlocks;

// The horizontal pass of one image: output x is sum of weight[x * taps + k] * in[start[x] + k].
struct HorizontalPlan {
    int outputs;  // a multiple of kVectorOutputs; those past the real width have weight 0
    int taps;     // even
    const int32_t *start;
    const int16_t *weight;
    // Filled by Kernels::pack for its own horizontal(); capacity 2 int32 and 64 bytes of index per 4 outputs.
    int32_t *base;
    uint8_t *index;
    int16_t *packed;  // outputs * taps
    int mode;
};

struct Kernels {
    const char *name;

    // RGBX pixels to three planes. May write up to kSlack bytes past n.
    void (*split)(const uint8_t *rgbx, uint8_t *r, uint8_t *g, uint8_t *b, int n);

    // Entropy decoding of `count` MCUs that are not needed, and of a row of MCUs of which scan.planes says what to keep;
    // after the `last` row nothing follows. False where the data is damaged.
    bool (*skip_mcus)(Scan &scan, int count);
    bool (*decode_mcu_row)(Scan &scan, int row, bool last);

    // n samples of chroma to 2 n, interpolated; reads one sample to either side. near and far are rows of the plane.
    void (*upsample_2x1)(const uint8_t *row, uint8_t *out, int n);
    void (*upsample_2x2)(const uint8_t *near, const uint8_t *far, uint8_t *out, int n);

    // May read and write up to kSlack past n.
    void (*to_rgb)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *r, uint8_t *g, uint8_t *b, int n);

    // out[i] = sum over k of weight[k] * rows[k][i], kMidBits fraction bits. taps is even, n a multiple of 64.
    void (*vertical)(const uint8_t *const *rows, const int16_t *weight, int taps, int16_t *out, int n);

    void (*pack)(HorizontalPlan &plan);
    void (*horizontal)(const int16_t *in, const HorizontalPlan &plan, uint8_t *out);

    // One row of n pixels in the layout's dtype; planes as the horizontal pass leaves them.
    void (*store_planar)(const uint8_t *plane, void *out, int n, Dtype dtype, float gain, float bias);
    void (*store_interleaved)(const uint8_t *const planes[3], void *out, int n, const Layout &layout);
};

extern const Kernels kPortableKernels;
#if defined(SHARDMILL_X86)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// The level in use: the best this CPU has, unless a test forced another one.
const Kernels &kernels();

// name: "best", "portable", "avx2" or "avx512". False where this build or CPU does not have it.
bool force_kernels(const char *name);
bool has_kernels(const char *name);

}  // namespace shardmill
