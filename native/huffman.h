// Huffman decoding of baseline JPEG blocks: the inner loop that takes most of the time of decoding.
//
// Faster than libjpeg-turbo's for two reasons (baseline.h has the measurement). The scan's bytes are unstuffed beforehand, so refilling the bit buffer is one unconditional 8-byte load. And one table look-up gives a
// coefficient's run, value and length together where they fit into kLookBits, which is nearly always.
#pragma once

#include <cstdint>
#include <cstring>

// Built for several instruction sets: inlined without fail, so that the linker never picks an AVX2 copy of a function
// for a plain CPU.
#define SHARDMILL_INLINE inline __attribute__((always_inline))

namespace shardmill {

// How many bytes an MCU may read past the end of its data before anyone looks: 6 blocks of 64 symbols of 31 bits at
// most, and a refill.
constexpr int kScanPadding = 2048;

struct HuffmanTable {
    static constexpr int kLookBits = 10;

    // value << 16 | advance << 8 | bits. `bits` is 0 where the code and its value do not fit. `advance` (AC only) is
    // the run and 1, or kEndAdvance for end-of-block.
    int32_t look[1 << kLookBits];
    // What the look-up leaves over: for codes of n bits, the first code past them (left-justified to 16 bits), and
    // what to add to a code to find its symbol.
    uint32_t limit[18];
    int32_t offset[17];
    uint8_t symbols[256];
    uint8_t counts[17];
    bool is_dc = false, valid = false;

    // The body of a DHT marker: 16 counts and the symbols. False where they make no prefix code.
    bool build(const uint8_t *bits, const uint8_t *values, int total, bool dc);
    bool same(const uint8_t *bits, const uint8_t *values, int total, bool dc) const {
        return valid && is_dc == dc && std::memcmp(counts + 1, bits, 16) == 0 &&
               std::memcmp(symbols, values, static_cast<size_t>(total)) == 0;
    }
};

constexpr int kEndAdvance = 128;

struct BitReader {
    const uint8_t *next = nullptr, *end = nullptr;
    uint64_t buffer = 0;  // left-justified
    int count = 0;        // of bits in it

    SHARDMILL_INLINE void start(const uint8_t *from, const uint8_t *to) {
        next = from;
        end = to;
        buffer = 0;
        count = 0;
    }

    // Whether more bits were taken than there are. Looked at once an MCU, see kScanPadding.
    SHARDMILL_INLINE bool overrun() const { return next - count / 8 > end; }

    // At least 56 bits after it.
    SHARDMILL_INLINE void refill() {
        uint64_t bytes;
        std::memcpy(&bytes, next, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        buffer |= bytes >> count;
        next += (63 - count) >> 3;
        count |= 56;
    }
    SHARDMILL_INLINE uint32_t peek(int n) const { return static_cast<uint32_t>(buffer >> (64 - n)); }
    // The low 6 bits of `n` count, so that a table entry can be given as it is.
    SHARDMILL_INLINE void drop(int n) {
        buffer <<= n & 63;
        count -= n & 63;
    }
};

// n bits that follow a code, as the signed value they stand for (ITU T.81, F.2.2.1). n is 1 to 15.
SHARDMILL_INLINE int32_t signed_value(uint32_t bits, int n) {
    const auto value = static_cast<int32_t>(bits);
    return value < (1 << (n - 1)) ? value - (1 << n) + 1 : value;
}

// The next symbol by search: for codes longer than the look-up. -1 where no code begins with these bits.
SHARDMILL_INLINE int long_symbol(BitReader &bits, const HuffmanTable &table) {
    const uint32_t code = bits.peek(16);
    int n = 1;
    while (code >= table.limit[n]) ++n;  // limit[17] is past every code
    if (n > 16) return -1;
    bits.drop(n);
    return table.symbols[(static_cast<int32_t>(code >> (16 - n)) + table.offset[n]) & 255];
}

// The difference of the next DC coefficient. False on a bad code.
SHARDMILL_INLINE bool decode_dc(BitReader &bits, const HuffmanTable &table, int32_t &difference) {
    bits.refill();
    const int32_t entry = table.look[bits.peek(HuffmanTable::kLookBits)];
    if ((entry & 255) != 0) {
        bits.drop(entry);
        difference = entry >> 16;
        return true;
    }
    const int size = long_symbol(bits, table);
    if (size < 0 || size > 11) return false;
    difference = 0;
    if (size > 0) {
        difference = signed_value(bits.peek(size), size);
        bits.drop(size);
    }
    return true;
}

// The 63 AC coefficients of a block. With Keep, coefficient k times quant[k] goes to block[place[k]]; `place` sends
// everything from 64 on to a spare element. False on a bad code or a run past the end.
template <bool Keep>
SHARDMILL_INLINE bool decode_ac(BitReader &bits, const HuffmanTable &table, const int16_t *quant, const int16_t *place,
                                int16_t *block) {
    int k = 1;
    for (;;) {
        // One refill is enough for five look-ups, so there is no branch on how many bits are left.
        bits.refill();
#pragma GCC unroll 5
        for (int i = 0; i < 5; ++i) {
            const int32_t entry = table.look[bits.peek(HuffmanTable::kLookBits)];
            if (__builtin_expect((entry & 255) != 0, 1)) {
                bits.drop(entry);
                k += (entry >> 8) & 255;
                if (Keep) block[place[k - 1]] = static_cast<int16_t>((entry >> 16) * quant[k - 1]);
            } else {
                bits.refill();
                const int symbol = long_symbol(bits, table);
                const int size = symbol & 15;
                k += (symbol >> 4) + 1;
                if (size == 0 && symbol == 0) k = kEndAdvance + 1;
                if (symbol < 0 || (size == 0 && symbol != 0 && symbol != 0xf0)) return false;
                if (size > 0) {
                    const int32_t value = signed_value(bits.peek(size), size);
                    bits.drop(size);
                    if (Keep) block[place[k - 1]] = static_cast<int16_t>(value * quant[k - 1]);
                }
                if (k >= 64) return k == 64 || k > kEndAdvance;
                break;  // to the refill
            }
            if (k >= 64) return k == 64 || k > kEndAdvance;
        }
    }
}

}  // namespace shardmill
