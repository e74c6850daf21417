// Feeds mutated JPEGs to the kernel, built with sanitizers by scripts/sanitize.sh. Not part of the module.
//
//   fuzz_driver ROUNDS FILE...     decodes each file ROUNDS times, mutated, with random crops, layouts and levels
//
// Deterministic: the same arguments give the same inputs, so a report can be run again in a debugger.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "jpeg.h"

using namespace shardmill;

namespace {

uint64_t state = 0x9e3779b97f4a7c15;

uint64_t draw() {  // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1d;
}

size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>((draw() >> 11) % n); }
double unit() { return static_cast<double>(draw() >> 11) * 0x1p-53; }

std::vector<uint8_t> read_file(const char *path) {
    std::vector<uint8_t> data;
    FILE *file = std::fopen(path, "rb");
    if (file == nullptr) {
        std::perror(path);
        std::exit(2);
    }
    uint8_t block[65536];
    for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;) data.insert(data.end(), block, block + n);
    std::fclose(file);
    return data;
}

void mutate(std::vector<uint8_t> &data) {
    const size_t edits = below(6);  // 0: as it was
    for (size_t i = 0; i < edits && !data.empty(); ++i) {
        const size_t at = below(2) ? below(data.size()) : below(data.size() < 700 ? data.size() : 700);
        size_t run = 1 + below(32);
        if (run > data.size() - at) run = data.size() - at;
        const auto from = data.begin() + static_cast<ptrdiff_t>(at), to = from + static_cast<ptrdiff_t>(run);
        switch (below(7)) {
        case 0:
        case 1:
        case 2: data[at] = static_cast<uint8_t>(draw()); break;
        case 3: data[at] ^= static_cast<uint8_t>(1 << below(8)); break;
        case 4: data.erase(from, to); break;
        case 5: {
            const std::vector<uint8_t> copy(from, to);
            data.insert(data.begin() + static_cast<ptrdiff_t>(at), copy.begin(), copy.end());
            break;
        }
        default: data.resize(at); break;
        }
    }
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: fuzz_driver ROUNDS FILE...\n");
        return 2;
    }
    const long rounds = std::strtol(argv[1], nullptr, 10);
    const char *levels[] = {"portable", "avx2", "avx512"};
    long counts[16] = {};
    JpegDecoder decoder;
    for (int i = 2; i < argc; ++i) {
        const std::vector<uint8_t> original = read_file(argv[i]);
        for (long round = 0; round < rounds; ++round) {
            std::vector<uint8_t> mutated = original;
            mutate(mutated);
            // Exactly as long as the data, so that one byte too far is seen.
            const std::vector<uint8_t> data(mutated.begin(), mutated.end());
            JpegDecoder::use_fast_path(below(4) != 0);
            if (!force_kernels(levels[below(3)])) force_kernels("best");

            JpegHeader header;
            read_jpeg_header(data.data(), data.size(), header);
            const double width = header.width > 0 ? header.width : 1, height = header.height > 0 ? header.height : 1;
            Crop crop{unit() * width, unit() * height, 0, 0, below(2) == 1};
            crop.width = (width - crop.left) * (below(4) ? unit() : 1.0);
            crop.height = (height - crop.top) * (below(4) ? unit() : 1.0);
            if (below(4) == 0) crop = Crop{0, 0, width, height, false};

            Layout layout{};
            layout.height = 1 + static_cast<int32_t>(below(70));
            layout.width = 1 + static_cast<int32_t>(below(70));
            layout.dtype = static_cast<Dtype>(below(4));
            layout.planar = below(2) == 1;
            for (float &gain : layout.gain) gain = static_cast<float>(unit()) + 0.001F;
            const size_t item = layout.dtype == Dtype::kUint8 ? 1 : layout.dtype == Dtype::kFloat32 ? 4 : 2;
            std::vector<uint8_t> slot(item * 3 * static_cast<size_t>(layout.height) * static_cast<size_t>(layout.width));
            const Limits limits{4000000, 50, below(2) == 1};
            const Status status = decoder.decode(data.data(), data.size(), crop, layout,
                                                 static_cast<Filter>(below(2)), limits, slot.data());
            ++counts[status & 15];
        }
    }
    std::printf("statuses 0..7:");
    for (int i = 0; i < 8; ++i) std::printf(" %ld", counts[i]);
    std::printf("\n");
    // Neither all good nor all bad, or the mutations reach nothing.
    return counts[kOk] > 0 && counts[kCorrupt] + counts[kTruncated] > 0 ? 0 : 1;
}
