// The fast path: baseline Huffman JPEGs of the usual kinds, decoded without libjpeg, pixel for pixel as it does.
//
// Why at all: libjpeg-turbo's entropy decoding is two thirds of the time of a crop (perf, 500 ImageNet JPEGs of 110 KB).
// CPU time an image, RandomResizedCrop(224) to uint8: 1,232 us through libjpeg-turbo, 823 us here; its entropy decoding
// of the whole image alone takes 1,176 us. Whatever is unusual (progressive, 12 bits, CMYK, odd sampling, reduced DCT)
// or does not decode cleanly is left to libjpeg-turbo, from the start: its verdict is the one that counts, and tests
// hold both to the same pixels, bit for bit.
#pragma once

#include <vector>

#include "image.h"
#include "resample.h"
#include "scan.h"

namespace shardmill {

class BaselineDecoder {
  public:
    // Whether this path can decode the image. `data` must stay until read_region() is done.
    bool open(const uint8_t *data, size_t size);

    // Feeds the rows that the resampler's plan asks for. False where anything is odd: nothing is known then.
    bool read_region(Resampler &resampler, const Layout &layout, void *slot);

    int width() const { return width_; }
    int height() const { return height_; }

  private:
    bool read_frame(const uint8_t *body, size_t size);
    bool read_scan(const uint8_t *body, size_t size);
    bool read_quant(const uint8_t *body, size_t size);
    bool unstuff(const uint8_t *from, const uint8_t *end);
    void emit_rows(Resampler &resampler, int from, int to);

    int width_ = 0, height_ = 0, max_h_ = 1, max_v_ = 1, mcus_down_ = 0;
    bool has_jfif_ = false;
    int ids_[3], quant_slots_[3], table_slots_[2][3];
    Scan scan_{};
    Buffer samples_[3];
    int16_t quant_[4][192];  // by zigzag place; 0 from 64 on
    bool has_quant_[4];
    HuffmanTable tables_[2][4];  // [DC, AC]
    Buffer scan_buffer_, line_buffer_;
    std::vector<uint32_t> intervals_;  // where each restart interval starts in the unstuffed scan, and where it ends
    const Kernels *kernels_ = nullptr;
};

}  // namespace shardmill
