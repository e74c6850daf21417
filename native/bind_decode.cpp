// Python's door to the image kernel: one call decodes a list of images with the GIL released.
#include <cstring>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "jpeg.h"

namespace nb = nanobind;

namespace shardmill {
namespace {

template <typename T> using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Vector<uint8_t>;
using Result = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;

JpegDecoder &decoder_of_this_thread() {
    thread_local JpegDecoder decoder;
    return decoder;
}

void check_ranges(const Bytes &data, const Vector<int64_t> &starts, const Vector<int64_t> &sizes) {
    if (starts.shape(0) != sizes.shape(0)) throw std::invalid_argument("starts and sizes differ in length");
    const auto total = static_cast<int64_t>(data.shape(0));
    for (size_t i = 0; i < starts.shape(0); ++i) {
        const int64_t start = starts.data()[i], size = sizes.data()[i];
        if (start < 0 || size < 0 || start > total || size > total - start)
            throw std::out_of_range("image " + std::to_string(i) + " is not inside the data");
    }
}

Result make_result(size_t n, int32_t *&values) {
    values = new int32_t[n > 0 ? n : 1];
    nb::capsule owner(values, [](void *p) noexcept { delete[] static_cast<int32_t *>(p); });
    return Result(values, {n}, owner);
}

nb::tuple read_sizes(Bytes data, Vector<int64_t> starts, Vector<int64_t> sizes) {
    check_ranges(data, starts, sizes);
    const size_t n = starts.shape(0);
    int32_t *widths, *heights, *orientations, *statuses;
    Result w = make_result(n, widths), h = make_result(n, heights), o = make_result(n, orientations),
           s = make_result(n, statuses);
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < n; ++i) {
            JpegHeader header;
            statuses[i] =
                read_jpeg_header(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]), header);
            widths[i] = header.width;
            heights[i] = header.height;
            orientations[i] = header.orientation;
        }
    }
    return nb::make_tuple(w, h, o, s);
}

struct Boxes {
    Vector<double> left, top, width, height;
    Vector<bool> flip;
};

Result decode_into(Bytes data, Vector<int64_t> starts, Vector<int64_t> sizes, Vector<double> left, Vector<double> top,
                   Vector<double> width, Vector<double> height, Vector<bool> flip, Vector<int64_t> slots,
                   nb::ndarray<nb::c_contig, nb::device::cpu> out, int dtype, bool planar, int out_height,
                   int out_width, Vector<float> gain, Vector<float> bias, int filter, int64_t max_pixels,
                   int max_scans, bool strict) {
    check_ranges(data, starts, sizes);
    const size_t n = starts.shape(0);
    if (left.shape(0) != n || top.shape(0) != n || width.shape(0) != n || height.shape(0) != n ||
        flip.shape(0) != n || slots.shape(0) != n)
        throw std::invalid_argument("crops and slots must have one entry per image");
    if (gain.shape(0) != 3 || bias.shape(0) != 3) throw std::invalid_argument("gain and bias have 3 entries");
    if (dtype < 0 || dtype > 3 || filter < 0 || filter > 1 || out_height < 1 || out_width < 1)
        throw std::invalid_argument("no such dtype, filter or output size");

    Layout layout;
    layout.height = out_height;
    layout.width = out_width;
    layout.dtype = static_cast<Dtype>(dtype);
    layout.planar = planar;
    std::memcpy(layout.gain, gain.data(), sizeof layout.gain);
    std::memcpy(layout.bias, bias.data(), sizeof layout.bias);
    const size_t item = layout.dtype == Dtype::kUint8 ? 1 : layout.dtype == Dtype::kFloat32 ? 4 : 2;
    const size_t channel = planar ? 1 : 3, down = planar ? 2 : 1, across = planar ? 3 : 2;
    if (out.ndim() != 4 || out.itemsize() != item || out.shape(channel) != 3 ||
        out.shape(down) != static_cast<size_t>(out_height) || out.shape(across) != static_cast<size_t>(out_width))
        throw std::invalid_argument("out does not have the shape and item size of the layout");
    const size_t slot_bytes = item * 3 * static_cast<size_t>(out_height) * static_cast<size_t>(out_width);
    for (size_t i = 0; i < n; ++i)
        if (slots.data()[i] < 0 || static_cast<size_t>(slots.data()[i]) >= out.shape(0))
            throw std::out_of_range("slot " + std::to_string(slots.data()[i]) + " is not in out");

    const Limits limits{max_pixels, max_scans, strict};
    auto *to = static_cast<uint8_t *>(out.data());
    int32_t *statuses;
    Result result = make_result(n, statuses);
    {
        nb::gil_scoped_release release;
        JpegDecoder &decoder = decoder_of_this_thread();
        for (size_t i = 0; i < n; ++i) {
            const Crop crop{left.data()[i], top.data()[i], width.data()[i], height.data()[i], flip.data()[i]};
            statuses[i] = decoder.decode(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]), crop,
                                         layout, static_cast<Filter>(filter), limits,
                                         to + static_cast<size_t>(slots.data()[i]) * slot_bytes);
        }
    }
    return result;
}

Result entropy_decode(Bytes data, Vector<int64_t> starts, Vector<int64_t> sizes) {
    check_ranges(data, starts, sizes);
    const size_t n = starts.shape(0);
    int32_t *statuses;
    Result result = make_result(n, statuses);
    {
        nb::gil_scoped_release release;
        JpegDecoder &decoder = decoder_of_this_thread();
        for (size_t i = 0; i < n; ++i)
            statuses[i] =
                decoder.entropy_decode(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]));
    }
    return result;
}

#define SHARDMILL_TEXT_(x) #x
#define SHARDMILL_TEXT(x) SHARDMILL_TEXT_(x)

nb::dict native_features() {
    nb::dict features;
    features["libjpeg_turbo"] = SHARDMILL_TEXT(LIBJPEG_TURBO_VERSION);
    features["simd"] = kernels().name;
    nb::list levels;
    for (const char *name : {"portable", "avx2", "avx512"})
        if (has_kernels(name)) levels.append(name);
    features["simd_levels"] = levels;
    return features;
}

void set_simd_level(const std::string &name) {
    if (!force_kernels(name.c_str())) throw std::invalid_argument("this machine does not have " + name);
}

}  // namespace
}  // namespace shardmill

void bind_decode(nb::module_ &m) {
    using namespace shardmill;
    m.def("read_jpeg_sizes", &read_sizes, nb::arg("data"), nb::arg("starts"), nb::arg("sizes"),
          "Widths, heights, EXIF orientations and statuses of JPEGs by their markers. Releases the GIL.");
    m.def("decode_jpegs", &decode_into, nb::arg("data"), nb::arg("starts"), nb::arg("sizes"), nb::arg("left"),
          nb::arg("top"), nb::arg("width"), nb::arg("height"), nb::arg("flip"), nb::arg("slots"), nb::arg("out"),
          nb::kw_only(), nb::arg("dtype"), nb::arg("planar"), nb::arg("out_height"), nb::arg("out_width"),
          nb::arg("gain"), nb::arg("bias"), nb::arg("resize_filter"), nb::arg("max_pixels"), nb::arg("max_scans"),
          nb::arg("strict"), "Crop, resize and convert JPEGs into slots of `out`; a status each. Releases the GIL.");
    m.def("entropy_decode", &entropy_decode, nb::arg("data"), nb::arg("starts"), nb::arg("sizes"),
          "libjpeg-turbo's entropy decoding alone, of whole JPEGs: the ceiling in benchmarks. Releases the GIL.");
    m.def("native_features", &native_features, "The libjpeg-turbo version and the instruction sets in use.");
    m.def("use_fast_path", &JpegDecoder::use_fast_path, nb::arg("on"),
          "For tests: whether usual JPEGs take our own decoder or libjpeg-turbo from now on, in all threads.");
    m.def("set_simd_level", &set_simd_level, nb::arg("name"),
          "For tests: use 'portable', 'avx2', 'avx512' or 'best' from now on, in all threads.");
}
