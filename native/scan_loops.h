// Entropy decoding of MCUs: the loops that take most of the time. Included by translation units built for different
// instruction sets (BMI2's shifts are worth 10 %): all in an anonymous namespace.
#pragma once

#include "kernels.h"
#include "scan.h"

namespace shardmill {
namespace {

constexpr uint8_t kZigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// Where coefficient k goes in a group of blocks (see Kernels::inverse_dct); the spare place after all of them from 64 on.
struct Places {
    int16_t at[192];
    constexpr Places() : at() {
        for (int k = 0; k < 192; ++k)
            at[k] = static_cast<int16_t>(k < 64 ? kZigzag[k] / 8 * 8 * kGroupBlocks + kZigzag[k] % 8 : kGroupSpare);
    }
};
constexpr Places kPlaces;

inline bool begin_interval(Scan &scan, BitReader &bits, int number) {
    if (number >= scan.interval_count) return false;
    scan.interval = number;
    scan.left_in_interval = scan.restart_interval == 0 ? INT32_MAX : scan.restart_interval;
    bits.start(scan.data + scan.intervals[number], scan.data + scan.intervals[number + 1]);
    for (ScanPlane &plane : scan.planes) plane.last_dc = 0;
    return true;
}

template <bool Keep> SHARDMILL_INLINE bool decode_block(BitReader &bits, ScanPlane &plane, int16_t *block) {
    int32_t difference = 0;
    if (!decode_dc(bits, *plane.dc, difference)) return false;
    // Unsigned: damaged data may overflow.
    plane.last_dc = static_cast<int32_t>(static_cast<uint32_t>(plane.last_dc) + static_cast<uint32_t>(difference));
    if (Keep) block[0] = static_cast<int16_t>(static_cast<uint32_t>(plane.last_dc) * static_cast<uint32_t>(plane.quant[0]));
    return decode_ac<Keep>(bits, *plane.ac, plane.quant, kPlaces.at, block);
}

inline bool skip_mcus(Scan &scan, int count) {
    BitReader bits = scan.bits;  // a local stays in registers
    for (int i = 0; i < count; ++i) {
        if (scan.left_in_interval == 0 && (bits.overrun() || !begin_interval(scan, bits, scan.interval + 1)))
            return false;
        --scan.left_in_interval;
        for (int c = 0; c < scan.count; ++c) {
            ScanPlane &plane = scan.planes[c];
            for (int b = 0; b < plane.h * plane.v; ++b)
                if (!decode_block<false>(bits, plane, nullptr)) return false;
        }
        if (bits.overrun()) return false;
    }
    scan.bits = bits;
    return true;
}

// Blocks are collected in groups of kGroupBlocks neighbours, so that one transform does them all.
template <void (*InverseDct)(const int16_t *, uint8_t *, int)> bool decode_mcu_row(Scan &scan, int row, bool last) {
    struct Group {
        alignas(64) int16_t coefficients[kGroupSize];
    };
    Group groups[4];  // rows of blocks: Y (1 or 2), Cb, Cr
    std::memset(groups, 0, sizeof groups);
    const int first_mcu = scan.planes[0].first_block / scan.planes[0].h;
    const int last_mcu = scan.planes[0].last_block / scan.planes[0].h;
    if (!skip_mcus(scan, first_mcu)) return false;
    BitReader bits = scan.bits;
    for (int mcu = first_mcu; mcu < last_mcu; ++mcu) {
        if (scan.left_in_interval == 0 && (bits.overrun() || !begin_interval(scan, bits, scan.interval + 1)))
            return false;
        --scan.left_in_interval;
        int16_t *coefficients = groups[0].coefficients;
        for (int c = 0; c < scan.count; ++c) {
            ScanPlane &plane = scan.planes[c];
            for (int v = 0; v < plane.v; ++v, coefficients += kGroupSize) {
                for (int h = 0; h < plane.h; ++h) {
                    const int column = mcu * plane.h + h - plane.first_block;
                    if (!decode_block<true>(bits, plane, coefficients + column % kGroupBlocks * 8)) return false;
                    const bool full = column % kGroupBlocks == kGroupBlocks - 1;
                    if (!full && !(mcu == last_mcu - 1 && h == plane.h - 1)) continue;
                    const int y = (row * plane.v + v) * 8 % plane.ring_rows;
                    InverseDct(coefficients,
                               plane.samples + static_cast<ptrdiff_t>(y) * plane.stride +
                                   column / kGroupBlocks * kGroupBlocks * 8,
                               plane.stride);
                    std::memset(coefficients, 0, sizeof(Group));
                }
            }
        }
        if (bits.overrun()) return false;
    }
    scan.bits = bits;
    return last || skip_mcus(scan, scan.mcus_across - last_mcu);
}

}  // namespace
}  // namespace shardmill
