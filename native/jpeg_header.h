// What the markers of a JPEG say, without decoding anything.
#pragma once

#include "image.h"

namespace shardmill {

struct JpegHeader {
    int width = 0, height = 0, components = 0;
    bool progressive = false;
    int orientation = 1;    // EXIF, 1..8; 1 where there is none
    size_t scan_start = 0;  // offset of the first SOS marker
};

// Walks the markers up to the first scan. kUnsupported: not a JPEG; kTruncated, kCorrupt: no usable frame header.
Status read_jpeg_header(const uint8_t *data, size_t size, JpegHeader &header);

// Whether an end-of-image marker comes after the first scan. Entropy-coded data cannot contain one, so a file cut
// anywhere has none, whatever part of it the crop needs. Bytes after the marker are allowed.
bool has_end_of_image(const uint8_t *data, size_t size, const JpegHeader &header);

}  // namespace shardmill
