// Antialiased separable resampling of a stream of rows, from source planes straight into a batch slot.
#pragma once

#include "image.h"
#include "kernels.h"

namespace shardmill {

// Which samples of one axis make which output, and with what weights.
class Axis {
  public:
    // `size` samples, of which [low, low + length) becomes `outputs` samples. The convolution of Pillow's
    // Image.resize(box=...): the filter's support grows with the reduction, weights are cut at the edges of the image
    // (not of the box) and normalised. `flip` reverses the outputs. Returns false where memory is out.
    bool plan(int size, double low, double length, int outputs, Filter filter, bool flip);

    int outputs() const { return outputs_; }
    int taps() const { return taps_; }    // even; windows shorter than this end in weights of 0
    int first() const { return first_; }  // samples needed: [first, last)
    int last() const { return last_; }
    // Relative to first(). Arrays hold `outputs` rounded up to kVectorOutputs entries; the extra ones have weight 0.
    const int32_t *start() const { return start_; }
    const int32_t *stop() const { return stop_; }
    const int16_t *weight() const { return weight_; }

  private:
    int outputs_ = 0, taps_ = 0, first_ = 0, last_ = 0;
    int32_t *start_ = nullptr, *stop_ = nullptr;
    int16_t *weight_ = nullptr;
    Buffer starts_, weights_;
};

// Takes the rows [rows.first(), rows.last()) of an image in order, and writes each output row as soon as it can, so
// that only the rows in reach of the filter are held. One per thread, reused.
class Resampler {
  public:
    Axis columns, rows;  // planned by the caller before begin()

    // planes: 3, or 1 for gray, which is written to all three channels. batch: rows that come at a time.
    bool begin(int planes, int batch, const Layout &layout, void *slot);

    // Where row r of the source goes: columns [columns.first(), columns.last()). May be written up to stride().
    uint8_t *row(int r, int plane) {
        return ring_ + (static_cast<size_t>(r % ring_rows_) * planes_ + plane) * stride_;
    }
    int stride() const { return stride_; }

    // Row r and all above it have been written.
    void finish_row(int r);

  private:
    void emit(int y);

    const Kernels *kernels_ = nullptr;
    const Layout *layout_ = nullptr;
    uint8_t *slot_ = nullptr;
    int planes_ = 0, stride_ = 0, ring_rows_ = 0, next_ = 0, padded_ = 0;
    uint8_t *ring_ = nullptr, *line_ = nullptr;
    int16_t *middle_ = nullptr;
    const uint8_t **pointers_ = nullptr;
    HorizontalPlan plan_{};
    Buffer ring_buffer_, line_buffer_, middle_buffer_, pointer_buffer_, base_buffer_, index_buffer_, packed_buffer_;
};

}  // namespace shardmill
