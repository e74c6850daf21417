// Which instruction set to use, decided once by what the CPU says it has.
#include "kernels.h"

#include <atomic>
#include <cstring>

namespace shardmill {
namespace {

const Kernels *find(const char *name) {
    const bool best = std::strcmp(name, "best") == 0;
#if defined(SHARDMILL_X86)
    __builtin_cpu_init();
    if ((best || std::strcmp(name, "avx512") == 0) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return &kAvx512Kernels;
    if ((best || std::strcmp(name, "avx2") == 0) && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("bmi2"))
        return &kAvx2Kernels;
#endif
    if (best || std::strcmp(name, "portable") == 0) return &kPortableKernels;
    return nullptr;
}

std::atomic<const Kernels *> chosen{nullptr};

}  // namespace

const Kernels &kernels() {
    const Kernels *level = chosen.load(std::memory_order_relaxed);
    if (level == nullptr) {
        level = find("best");
        chosen.store(level, std::memory_order_relaxed);
    }
    return *level;
}

bool has_kernels(const char *name) { return find(name) != nullptr; }

bool force_kernels(const char *name) {
    const Kernels *level = find(name);
    if (level != nullptr) chosen.store(level, std::memory_order_relaxed);
    return level != nullptr;
}

}  // namespace shardmill
