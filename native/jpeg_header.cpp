#include "jpeg_header.h"

#include <cstring>

namespace shardmill {
namespace {

// The orientation tag (0x0112) of the first directory of an EXIF block, or 1. Anything odd means 1, as in Pillow.
int exif_orientation(const uint8_t *tiff, size_t size) {
    if (size < 8) return 1;
    const bool little = tiff[0] == 'I' && tiff[1] == 'I';
    if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 1;
    auto u16 = [&](size_t at) -> uint32_t {
        return little ? tiff[at] | tiff[at + 1] << 8 : tiff[at] << 8 | tiff[at + 1];
    };
    auto u32 = [&](size_t at) -> uint32_t {
        return little ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2);
    };
    const size_t directory = u32(4);
    if (directory > size - 2 || size < directory + 2) return 1;
    const size_t entries = u16(directory);
    for (size_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + 12 * i;
        if (entry + 12 > size) return 1;
        if (u16(entry) == 0x0112 && u16(entry + 2) == 3) {
            const uint32_t value = u16(entry + 8);
            return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
        }
    }
    return 1;
}

}  // namespace

Status read_jpeg_header(const uint8_t *data, size_t size, JpegHeader &header) {
    header = JpegHeader();
    if (size < 3 || data[0] != 0xff || data[1] != 0xd8 || data[2] != 0xff) return kUnsupported;
    size_t at = 2;
    for (;;) {
        // Bytes before a marker are skipped, as libjpeg does.
        while (at < size && data[at] != 0xff) ++at;
        while (at < size && data[at] == 0xff) ++at;
        if (at >= size) return kTruncated;
        const uint8_t marker = data[at++];
        if (marker == 0x00 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) continue;
        if (marker == 0xd8 || marker == 0xd9) return kCorrupt;
        if (at + 2 > size) return kTruncated;
        const size_t length = static_cast<size_t>(data[at]) << 8 | data[at + 1];
        if (length < 2) return kCorrupt;
        if (at + length > size) return kTruncated;
        const uint8_t *body = data + at + 2;
        const size_t body_size = length - 2;
        if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
            if (body_size < 6) return kCorrupt;
            header.height = body[1] << 8 | body[2];
            header.width = body[3] << 8 | body[4];
            header.components = body[5];
            header.progressive = marker == 0xc2 || marker == 0xc6 || marker == 0xca || marker == 0xce;
            if (header.width == 0 || header.height == 0 || header.components == 0) return kCorrupt;
        } else if (marker == 0xe1 && body_size > 6 && std::memcmp(body, "Exif\0\0", 6) == 0) {
            header.orientation = exif_orientation(body + 6, body_size - 6);
        } else if (marker == 0xda) {
            header.scan_start = at - 2;
            return header.width != 0 ? kOk : kCorrupt;
        }
        at += length;
    }
}

bool has_end_of_image(const uint8_t *data, size_t size, const JpegHeader &header) {
    for (size_t at = size; at >= header.scan_start + 2; --at) {
        if (data[at - 1] == 0xd9 && data[at - 2] == 0xff) return true;
    }
    return false;
}

}  // namespace shardmill
