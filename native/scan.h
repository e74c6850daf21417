// The state of decoding one scan: plain data, shared by baseline.cpp, which sets it up, and the loops of scan_loops.h.
#pragma once

#include "huffman.h"

namespace shardmill {

struct ScanPlane {
    int h, v;                     // sampling factors
    int first_block, last_block;  // columns of blocks to keep
    int stride, ring_rows;        // of `samples`; row y of the plane is at y % ring_rows
    uint8_t *samples;
    const HuffmanTable *dc, *ac;
    const int16_t *quant;  // by zigzag place, 0 from 64 on
    int32_t last_dc;
};

struct Scan {
    BitReader bits;
    int count;  // of planes
    ScanPlane planes[3];
    int mcus_across, restart_interval, left_in_interval;
    const uint8_t *data;        // unstuffed, with kScanPadding at the end
    const uint32_t *intervals;  // where each restart interval starts in it, and where the last one ends
    int interval, interval_count;
};

}  // namespace shardmill
