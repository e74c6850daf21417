// The values that cross between the stages of the kernel: what to decode, where to, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace shardmill {

// Numbers are part of the seam with images/decode.py: never renumber.
enum Status : int32_t {
    kOk = 0,
    kUnsupported = 1,    // not a JPEG, or a kind of JPEG that libjpeg-turbo does not decode: Pillow's turn
    kTruncated = 2,      // the data ends before the image does
    kCorrupt = 3,        // libjpeg-turbo found an error, or (strict) had to make up pixels
    kTooManyPixels = 4,
    kTooManyScans = 5,
    kBadCrop = 6,        // empty, not finite, or not inside the image
    kOutOfMemory = 7,
};

enum class Dtype : int32_t { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };
enum class Filter : int32_t { kBilinear = 0, kBicubic = 1 };

struct Limits {
    int64_t max_pixels;
    int32_t max_scans;
    bool strict;
};

struct Crop {
    double left, top, width, height;
    bool flip;
};

// One layout for all images of a call. Pixel v of channel c is written as v * gain[c] + bias[c] (not for uint8).
struct Layout {
    int32_t height, width;
    Dtype dtype;
    bool planar;  // NCHW, else NHWC
    float gain[3], bias[3];
};

// A buffer that only grows, so that a thread in its steady state allocates nothing. Contents do not survive growth.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { std::free(data_); }

    // Returns nullptr where memory is out; the address is a multiple of 64.
    template <typename T> T *ensure(size_t count) {
        size_t bytes = (count * sizeof(T) + 63) / 64 * 64 + 64;
        if (bytes > capacity_) {
            std::free(data_);
            capacity_ = 0;
            data_ = std::aligned_alloc(64, bytes);
            if (data_ == nullptr) return nullptr;
            capacity_ = bytes;
        }
        return static_cast<T *>(data_);
    }

  private:
    void *data_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace shardmill
