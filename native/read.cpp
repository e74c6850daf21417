// Byte ranges of open files into one buffer, and crc32c of ranges of a buffer: loops that a thread runs without the GIL.
// Their plain-Python twins are in
// storage/local.py and storage/checksums.py.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <sys/types.h>
#include <unistd.h>

namespace nb = nanobind;

namespace {

template <typename T> using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T> using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool truth, const char *message) {
    if (!truth) throw nb::value_error(message);
}

bool inside(std::int64_t start, std::int64_t size, std::int64_t room) {
    return start >= 0 && size >= 0 && start <= room && size <= room - start;
}

// 0: all bytes read; -1: the file ended first; otherwise errno.
int read_fully(int fd, std::uint8_t *out, std::size_t size, off_t start) {
    while (size > 0) {
        ssize_t got = pread(fd, out, size, start);
        if (got < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (got == 0) return -1;
        out += got;
        start += got;
        size -= static_cast<std::size_t>(got);
    }
    return 0;
}

// crc32c (Castagnoli, reflected polynomial 0x82f63b78), as iSCSI and google-crc32c compute it.
struct Tables {
    std::uint32_t byte[8][256];
    Tables() {
        for (std::uint32_t i = 0; i < 256; ++i) {
            std::uint32_t crc = i;
            for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
            byte[0][i] = crc;
        }
        for (int slice = 1; slice < 8; ++slice)
            for (std::uint32_t i = 0; i < 256; ++i)
                byte[slice][i] = (byte[slice - 1][i] >> 8) ^ byte[0][byte[slice - 1][i] & 0xffu];
    }
};
const Tables tables;

std::uint32_t update_portable(std::uint32_t crc, const std::uint8_t *data, std::size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        std::uint32_t low = crc ^ (data[0] | data[1] << 8 | data[2] << 16 | std::uint32_t(data[3]) << 24);
        crc = tables.byte[7][low & 0xff] ^ tables.byte[6][low >> 8 & 0xff] ^ tables.byte[5][low >> 16 & 0xff] ^
              tables.byte[4][low >> 24] ^ tables.byte[3][data[4]] ^ tables.byte[2][data[5]] ^ tables.byte[1][data[6]] ^
              tables.byte[0][data[7]];
    }
    for (; size > 0; ++data, --size) crc = (crc >> 8) ^ tables.byte[0][(crc ^ *data) & 0xff];
    return crc;
}

#if defined(__x86_64__)
// Three streams at once: the crc32 instruction takes 3 cycles but a new one can start every cycle. Joining them needs
// "append k zero bytes", a linear map of the 32 state bits, tabulated by byte for the two stride lengths in use.
constexpr std::size_t STRIDE = 4096;

struct ZerosTable {
    std::uint32_t byte[4][256];
    explicit ZerosTable(std::size_t zeros) {
        std::vector<std::uint8_t> empty(zeros, 0);
        std::uint32_t basis[32];
        for (int bit = 0; bit < 32; ++bit) basis[bit] = update_portable(1u << bit, empty.data(), zeros);
        for (int position = 0; position < 4; ++position)
            for (int value = 0; value < 256; ++value) {
                std::uint32_t sum = 0;
                for (int bit = 0; bit < 8; ++bit)
                    if (value >> bit & 1) sum ^= basis[position * 8 + bit];
                byte[position][value] = sum;
            }
    }
    std::uint32_t operator()(std::uint32_t crc) const {
        return byte[0][crc & 0xff] ^ byte[1][crc >> 8 & 0xff] ^ byte[2][crc >> 16 & 0xff] ^ byte[3][crc >> 24];
    }
};

inline std::uint64_t word(const std::uint8_t *data) {
    std::uint64_t value;
    std::memcpy(&value, data, 8);
    return value;
}

__attribute__((target("sse4.2"))) std::uint32_t update_sse42(std::uint32_t crc, const std::uint8_t *data,
                                                             std::size_t size) {
    static const ZerosTable skip(STRIDE);
    while (size >= 3 * STRIDE) {
        std::uint64_t a = crc, b = 0, c = 0;
        for (std::size_t i = 0; i < STRIDE; i += 8) {
            a = __builtin_ia32_crc32di(a, word(data + i));
            b = __builtin_ia32_crc32di(b, word(data + STRIDE + i));
            c = __builtin_ia32_crc32di(c, word(data + 2 * STRIDE + i));
        }
        crc = skip(skip(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b)) ^ static_cast<std::uint32_t>(c);
        data += 3 * STRIDE;
        size -= 3 * STRIDE;
    }
    std::uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) wide = __builtin_ia32_crc32di(wide, word(data));
    crc = static_cast<std::uint32_t>(wide);
    for (; size > 0; ++data, --size) crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}

// 256 bytes at a time: carry-less products fold four 64-byte lanes onto the next 256 bytes, what is left of them is a
// message of the same crc. 2.1 us for 110 KB, the crc32 instruction alone takes 4.9. The two factors are x^(2048 + 32)
// and x^(2048 - 32) modulo the polynomial, bit-reflected and shifted by one (Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ", Intel 2009).
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) std::uint32_t update_avx512(std::uint32_t crc,
                                                                                         const std::uint8_t *data,
                                                                                         std::size_t size) {
    if (size >= 512) {
        const __m512i factors = _mm512_broadcast_i32x4(_mm_set_epi64x(0xb9e02b86, 0xdcb17aa4));
        __m512i lane[4];
        for (int i = 0; i < 4; ++i) lane[i] = _mm512_loadu_si512(data + 64 * i);
        lane[0] = _mm512_xor_si512(lane[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
        for (data += 256, size -= 256; size >= 256; data += 256, size -= 256)
            for (int i = 0; i < 4; ++i)
                lane[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane[i], factors, 0x00),
                                                    _mm512_clmulepi64_epi128(lane[i], factors, 0x11),
                                                    _mm512_loadu_si512(data + 64 * i), 0x96);  // a ^ b ^ c
        std::uint8_t rest[256];
        for (int i = 0; i < 4; ++i) _mm512_storeu_si512(rest + 64 * i, lane[i]);
        crc = update_sse42(0, rest, sizeof rest);
    }
    return update_sse42(crc, data, size);
}
#endif

// level 0: the best this processor has; 1: at most SSE4.2; 2: portable. Tests compare them.
std::uint32_t crc32c(const std::uint8_t *data, std::size_t size, int level) {
#if defined(__x86_64__)
    static const bool fast = __builtin_cpu_supports("sse4.2");
    static const bool wide = fast && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    if (wide && level == 0) return ~update_avx512(~0u, data, size);
    if (fast && level <= 1) return ~update_sse42(~0u, data, size);
#endif
    return ~update_portable(~0u, data, size);
}

// Reads fetch i, then takes the crc32c of the wanted ranges inside it while they are still in the cache: checking in a
// second pass over the whole buffer costs half as much again (33 against 24 us for 110 KB).
void read_ranges(Column<std::int32_t> fds, Column<std::int64_t> starts, Column<std::int64_t> sizes,
                 Output<std::uint8_t> out, Column<std::int64_t> out_starts, Output<std::int32_t> status,
                 Column<std::int64_t> positions, Column<std::int64_t> wanted_sizes, Column<std::int64_t> order,
                 Column<std::int64_t> first_wanted, std::optional<Output<std::uint32_t>> crcs) {
    const std::size_t n = fds.shape(0), wanted = positions.shape(0);
    require(starts.shape(0) == n && sizes.shape(0) == n && out_starts.shape(0) == n && status.shape(0) == n,
            "fds, starts, sizes, out_starts and status must have one length");
    const auto room = static_cast<std::int64_t>(out.shape(0));
    for (std::size_t i = 0; i < n; ++i) {
        require(starts.data()[i] >= 0, "a fetch starts before its file");
        require(inside(out_starts.data()[i], sizes.data()[i], room), "a range does not fit into the buffer");
    }
    if (crcs) {
        require(wanted_sizes.shape(0) == wanted && order.shape(0) == wanted && crcs->shape(0) == wanted &&
                    first_wanted.shape(0) == n + 1 && first_wanted.data()[0] == 0 &&
                    first_wanted.data()[n] == static_cast<std::int64_t>(wanted),
                "the wanted ranges are not divided among the fetches");
        for (std::size_t i = 0; i < n; ++i)
            require(first_wanted.data()[i] <= first_wanted.data()[i + 1], "first_wanted must not fall");
        for (std::size_t i = 0; i < wanted; ++i) {
            require(inside(positions.data()[i], wanted_sizes.data()[i], room), "a wanted range is outside the buffer");
            require(order.data()[i] >= 0 && order.data()[i] < static_cast<std::int64_t>(wanted), "order is no order");
        }
    }
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < n; ++i) {
        status.data()[i] = read_fully(fds.data()[i], out.data() + out_starts.data()[i],
                                      static_cast<std::size_t>(sizes.data()[i]), starts.data()[i]);
        if (!crcs || status.data()[i] != 0) continue;
        for (std::int64_t j = first_wanted.data()[i]; j < first_wanted.data()[i + 1]; ++j) {
            const std::int64_t k = order.data()[j];
            crcs->data()[k] =
                crc32c(out.data() + positions.data()[k], static_cast<std::size_t>(wanted_sizes.data()[k]), 0);
        }
    }
}

void crc32c_ranges(Column<std::uint8_t> data, Column<std::int64_t> starts, Column<std::int64_t> sizes,
                   Output<std::uint32_t> out, int level) {
    const std::size_t n = starts.shape(0);
    require(sizes.shape(0) == n && out.shape(0) == n, "starts, sizes and out must have one length");
    const auto room = static_cast<std::int64_t>(data.shape(0));
    for (std::size_t i = 0; i < n; ++i)
        require(inside(starts.data()[i], sizes.data()[i], room), "a range is outside the buffer");
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < n; ++i)
        out.data()[i] = crc32c(data.data() + starts.data()[i], static_cast<std::size_t>(sizes.data()[i]), level);
}

}  // namespace

void bind_read(nb::module_ &m) {
    m.def("read_ranges", &read_ranges, nb::arg("fds"), nb::arg("starts"), nb::arg("sizes"), nb::arg("out"),
          nb::arg("out_starts"), nb::arg("status"), nb::arg("positions"), nb::arg("wanted_sizes"), nb::arg("order"),
          nb::arg("first_wanted"), nb::arg("crcs").none());
    m.def("crc32c_ranges", &crc32c_ranges, nb::arg("data"), nb::arg("starts"), nb::arg("sizes"), nb::arg("out"),
          nb::arg("level") = 0);
}
