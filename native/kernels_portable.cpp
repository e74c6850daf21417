// The inner loops in plain C++: what every CPU runs, and what the compiler vectorises where it can.
#include "convert.h"
#include "planes.h"
#include "scan_loops.h"

namespace shardmill {
namespace {

void split(const uint8_t *rgbx, uint8_t *r, uint8_t *g, uint8_t *b, int n) {
    for (int i = 0; i < n; ++i) {
        r[i] = rgbx[4 * i];
        g[i] = rgbx[4 * i + 1];
        b[i] = rgbx[4 * i + 2];
    }
}

void vertical(const uint8_t *const *rows, const int16_t *weight, int taps, int16_t *out, int n) {
    constexpr int kBlock = 64;
    for (int i = 0; i < n; i += kBlock) {
        int32_t sum[kBlock];
        for (int32_t &value : sum) value = 1 << (kVerticalShift - 1);
        for (int k = 0; k < taps; ++k) {
            const uint8_t *row = rows[k] + i;
            const int32_t w = weight[k];
            for (int j = 0; j < kBlock; ++j) sum[j] += w * row[j];
        }
        for (int j = 0; j < kBlock; ++j) out[i + j] = static_cast<int16_t>(sum[j] >> kVerticalShift);
    }
}

void pack(HorizontalPlan &) {}

void horizontal(const int16_t *in, const HorizontalPlan &plan, uint8_t *out) {
    for (int x = 0; x < plan.outputs; ++x) {
        const int16_t *weight = plan.weight + static_cast<size_t>(x) * plan.taps;
        const int16_t *from = in + plan.start[x];
        int32_t sum = 1 << (kHorizontalShift - 1);
        for (int k = 0; k < plan.taps; ++k) sum += static_cast<int32_t>(weight[k]) * from[k];
        out[x] = clamp_byte(sum >> kHorizontalShift);
    }
}

}  // namespace

const Kernels kPortableKernels = {"portable",
                                  split,
                                  skip_mcus,
                              decode_mcu_row<inverse_dct_scalar>,
                                  upsample_2x1_plain,
                                  upsample_2x2_plain,
                                  to_rgb_plain,
                                  vertical,
                                  pack,
                                  horizontal,
                                  store_planar_scalar,
                                  store_interleaved_scalar};

}  // namespace shardmill
