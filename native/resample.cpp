#include "resample.h"

#include <cmath>

namespace shardmill {
namespace {

inline double triangle(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

// Keys' cubic with a = -0.5, as Pillow has it.
inline double cubic(double x) {
    x = std::fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
    if (x < 2.0) return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0;
    return 0.0;
}

inline size_t bytes_of(Dtype dtype) { return dtype == Dtype::kUint8 ? 1 : dtype == Dtype::kFloat32 ? 4 : 2; }

}  // namespace

bool Axis::plan(int size, double low, double length, int outputs, Filter filter, bool flip) {
    const double scale = length / outputs;
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = (filter == Filter::kBilinear ? 1.0 : 2.0) * stretch;
    const int padded = (outputs + kVectorOutputs - 1) / kVectorOutputs * kVectorOutputs;
    const int most = static_cast<int>(std::ceil(support)) * 2 + 2;  // even, and no window is wider

    start_ = starts_.ensure<int32_t>(2 * static_cast<size_t>(padded));
    weight_ = weights_.ensure<int16_t>(static_cast<size_t>(padded) * most);
    if (start_ == nullptr || weight_ == nullptr) return false;
    stop_ = start_ + padded;
    outputs_ = outputs;

    // First the windows, as they decide how many taps a row of weights has.
    first_ = size;
    last_ = 0;
    int widest = 0;
    for (int i = 0; i < outputs; ++i) {
        const double center = low + (i + 0.5) * scale;
        int from = static_cast<int>(center - support + 0.5);
        int to = static_cast<int>(center + support + 0.5);
        if (from < 0) from = 0;
        if (to > size) to = size;
        if (from > size - 1) from = size - 1;
        if (to <= from) to = from + 1;
        const int at = flip ? outputs - 1 - i : i;
        start_[at] = from;
        stop_[at] = to;
        if (from < first_) first_ = from;
        if (to > last_) last_ = to;
        if (to - from > widest) widest = to - from;
    }
    taps_ = (widest + 1) / 2 * 2;

    const double shrink = 1.0 / stretch;
    for (int i = 0; i < outputs; ++i) {
        const int at = flip ? outputs - 1 - i : i;
        const double center = low + (i + 0.5) * scale;
        const int count = stop_[at] - start_[at];
        int16_t *weight = weight_ + static_cast<size_t>(at) * taps_;
        // Evaluated twice instead of stored: windows have no upper bound, and this is a few ns a tap.
        double total = 0.0;
        for (int k = 0; k < count; ++k) {
            const double x = (start_[at] + k - center + 0.5) * shrink;
            total += filter == Filter::kBilinear ? triangle(x) : cubic(x);
        }
        // The running sum is rounded, not each weight: the weights then add up to exactly 1, so flat areas stay as
        // they are, and each is within one unit of its true value.
        const double unit = total != 0.0 ? (1 << kWeightBits) / total : 0.0;
        double sum = 0.0;
        int done = 0;
        for (int k = 0; k < count; ++k) {
            const double x = (start_[at] + k - center + 0.5) * shrink;
            sum += (filter == Filter::kBilinear ? triangle(x) : cubic(x)) * unit;
            const int rounded = static_cast<int>(std::floor(sum + 0.5));
            weight[k] = static_cast<int16_t>(rounded - done);
            done = rounded;
        }
        for (int k = count; k < taps_; ++k) weight[k] = 0;
        start_[at] -= first_;
        stop_[at] -= first_;
    }
    for (int i = outputs; i < padded; ++i) {
        start_[i] = start_[outputs - 1];
        stop_[i] = stop_[outputs - 1];
        for (int k = 0; k < taps_; ++k) weight_[static_cast<size_t>(i) * taps_ + k] = 0;
    }
    return true;
}

bool Resampler::begin(int planes, int batch, const Layout &layout, void *slot) {
    kernels_ = &kernels();
    layout_ = &layout;
    slot_ = static_cast<uint8_t *>(slot);
    planes_ = planes;
    stride_ = (columns.last() - columns.first() + 63) / 64 * 64;
    ring_rows_ = rows.taps() + batch + 1;
    next_ = 0;
    padded_ = (columns.outputs() + kVectorOutputs - 1) / kVectorOutputs * kVectorOutputs;

    const size_t line = static_cast<size_t>(planes) * stride_;
    ring_ = ring_buffer_.ensure<uint8_t>(line * ring_rows_ + kSlack);
    middle_ = middle_buffer_.ensure<int16_t>(line + columns.taps() + kSlack);
    line_ = line_buffer_.ensure<uint8_t>(static_cast<size_t>(padded_) * 3);
    pointers_ = pointer_buffer_.ensure<const uint8_t *>(rows.taps());
    plan_.outputs = padded_;
    plan_.taps = columns.taps();
    plan_.start = columns.start();
    plan_.weight = columns.weight();
    plan_.base = base_buffer_.ensure<int32_t>(padded_);
    plan_.index = index_buffer_.ensure<uint8_t>(static_cast<size_t>(padded_) * 4);
    plan_.packed = packed_buffer_.ensure<int16_t>(static_cast<size_t>(padded_) * columns.taps());
    if (ring_ == nullptr || middle_ == nullptr || line_ == nullptr || pointers_ == nullptr || plan_.base == nullptr ||
        plan_.index == nullptr || plan_.packed == nullptr)
        return false;
    kernels_->pack(plan_);
    return true;
}

void Resampler::finish_row(int r) {
    const int have = r + 1 - rows.first();
    while (next_ < rows.outputs() && rows.stop()[next_] <= have) emit(next_++);
}

void Resampler::emit(int y) {
    const int from = rows.start()[y], count = rows.stop()[y] - from;
    for (int k = 0; k < rows.taps(); ++k)
        pointers_[k] = row(rows.first() + from + (k < count ? k : count - 1), 0);
    kernels_->vertical(pointers_, rows.weight() + static_cast<size_t>(y) * rows.taps(), rows.taps(), middle_,
                       planes_ * stride_);

    const uint8_t *lines[3];
    for (int c = 0; c < 3; ++c) {
        const int plane = c < planes_ ? c : 0;
        uint8_t *line = line_ + static_cast<size_t>(plane) * padded_;
        if (c < planes_) kernels_->horizontal(middle_ + static_cast<size_t>(c) * stride_, plan_, line);
        lines[c] = line;
    }

    const Layout &layout = *layout_;
    const size_t width = layout.width, size = bytes_of(layout.dtype);
    if (layout.planar) {
        for (int c = 0; c < 3; ++c)
            kernels_->store_planar(lines[c], slot_ + (static_cast<size_t>(c) * layout.height + y) * width * size,
                                   layout.width, layout.dtype, layout.gain[c], layout.bias[c]);
    } else {
        kernels_->store_interleaved(lines, slot_ + y * width * 3 * size, layout.width, layout);
    }
}

}  // namespace shardmill
