#include "huffman.h"

namespace shardmill {

bool HuffmanTable::build(const uint8_t *bits, const uint8_t *values, int total, bool dc) {
    valid = false;
    is_dc = dc;
    counts[0] = 0;
    std::memcpy(counts + 1, bits, 16);
    std::memset(symbols, 0, sizeof symbols);
    std::memcpy(symbols, values, static_cast<size_t>(total));
    std::memset(look, 0, sizeof look);

    uint32_t code = 0;
    int at = 0;
    for (int n = 1; n <= 16; ++n) {
        offset[n] = at - static_cast<int32_t>(code);
        for (int i = 0; i < counts[n]; ++i, ++at, ++code) {
            if (code >= (1u << n)) return false;
            const int symbol = symbols[at];
            const int run = dc ? 0 : symbol >> 4, size = dc ? symbol : symbol & 15;
            if (dc && symbol > 11) return false;
            if (n > kLookBits) continue;
            const int rest = kLookBits - n;
            // An AC symbol with a run but no value is end-of-block (0x00), 16 zeros (0xf0), or not baseline.
            const bool odd = !dc && size == 0 && symbol != 0 && symbol != 0xf0;
            if (size > rest || odd) continue;
            for (uint32_t tail = 0; tail < (1u << rest); ++tail) {
                const int32_t value = size == 0 ? 0 : [&] {
                    const auto raw = static_cast<int32_t>(tail >> (rest - size));
                    return raw < (1 << (size - 1)) ? raw - (1 << size) + 1 : raw;
                }();
                const int advance = dc ? 0 : symbol == 0 ? kEndAdvance : run + 1;
                look[code << rest | tail] = static_cast<int32_t>(static_cast<uint32_t>(value) << 16) | advance << 8 |
                                            (n + size);
            }
        }
        limit[n] = code << (16 - n);
        code <<= 1;
    }
    limit[17] = 0xffffffff;
    limit[0] = 0;
    return valid = true;
}

}  // namespace shardmill
