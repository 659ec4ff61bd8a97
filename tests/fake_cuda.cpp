// A CUDA driver whose device is the host: the functions of libcuda that peaccel calls, on kernels compiled by the host's
// compiler (tests/host_cuda.hpp). What it checks is what the real one would refuse: an image that is not aligned, a kernel that
// the images lack, a block that is too large, a grid that is too high, shared memory that was not asked for or is not there.
//
// PEACCEL_LIBCUDA names it; FAKE_CUDA_KERNELS lists libraries of kernels, with colons between them; FAKE_CUDA_STATUS and
// FAKE_CUDA_VERSION are what cuInit and cuDriverGetVersion say, FAKE_CUDA_MULTIPROCESSORS how many a device has. With FAKE_CUDA_TRACE, a
// file, nothing runs, and no memory is touched: launches, products and fills are written down there.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <elf.h>

namespace {

using KernelFunction = void (*)(const void*, unsigned, unsigned, unsigned, unsigned, unsigned);

// Devices, and the bytes of shared memory that a block may have on each: what compute capability 8.6 has, and too little.
constexpr int DEVICES = 2, SHARED[DEVICES] = {99 * 1024, 16 * 1024}, SHARED_WITHOUT_ASKING = 48 * 1024;

// The kernels of an image, and the bytes of shared memory that each declares.
using Image = std::map<std::string, int>;

struct Kernel {
    std::string name;
    KernelFunction run;
    int own;               // bytes that it declares
    int dynamic[DEVICES];  // that a launch may have beside them
};

constexpr int INVALID_VALUE = 1, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500;
std::map<std::string, Kernel> kernels;
std::vector<void*> host_libraries;
thread_local std::vector<void*> contexts;
std::mutex launching;  // fibers are shared

int from_environment(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

// Writes a line of the trace, if there is one.
template <typename... Numbers>
bool traced(const std::string& what, Numbers... numbers) {
    const char* path = std::getenv("FAKE_CUDA_TRACE");
    if (!path) return false;
    std::FILE* file = std::fopen(path, "a");
    std::fputs(what.c_str(), file);
    (std::fprintf(file, " %lld", static_cast<long long>(numbers)), ...);
    std::fputs("\n", file);
    std::fclose(file);
    return true;
}

// As the sections of the machine code in a fatbin say.
Image kernels_of(const char* data, size_t size) {
    const std::string code = ".text.", shared = ".nv.shared.", reserved = shared + "reserved.0";
    Image image;
    for (const char* elf = data; (elf = static_cast<const char*>(memmem(elf, data + size - elf, ELFMAG, SELFMAG)));) {
        const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(elf);
        const auto* const first = reinterpret_cast<const Elf64_Shdr*>(elf + header->e_shoff);
        const auto* const last = first + header->e_shnum;
        const char* const names = elf + first[header->e_shstrndx].sh_offset;
        const auto after = [&](const Elf64_Shdr& section, const std::string& prefix) {
            const std::string name = names + section.sh_name;
            return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : "";
        };
        // From capability 9.0 on, sizes include the 1 KB that the system keeps of each block, which is no part of limits.
        const bool with_system = std::any_of(first, last, [&](const auto& x) { return names + x.sh_name == reserved; });
        for (auto section = first; section < last; ++section) {
            if (const std::string name = after(*section, code); !name.empty()) image.emplace(name, 0);
            if (const std::string name = after(*section, shared); !name.empty())
                image[name] = int(section->sh_size) - (with_system ? 1024 : 0);
        }
        elf += SELFMAG;
    }
    return image;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    if (const int status = from_environment("FAKE_CUDA_STATUS", 0)) return status;
    const char* list = std::getenv("FAKE_CUDA_KERNELS");
    for (std::string rest = list ? list : ""; !rest.empty();) {
        const size_t end = rest.find(':');
        void* library = dlopen(rest.substr(0, end).c_str(), RTLD_NOW);
        if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 304;
        host_libraries.push_back(library);
        rest = end == std::string::npos ? "" : rest.substr(end + 1);
    }
    return 0;
}
int cuDriverGetVersion(int* version) {
    *version = from_environment("FAKE_CUDA_VERSION", 13000);
    return 0;
}
int cuGetErrorName(int status, const char** name) {
    static const std::map<int, const char*> names{
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"}, {34, "CUDA_ERROR_STUB_LIBRARY"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}};
    const auto found = names.find(status);
    if (found == names.end()) return INVALID_VALUE;
    *name = found->second;
    return 0;
}
int cuDeviceGet(int* device, int number) {
    *device = number;
    return number < DEVICES ? 0 : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    // Multiprocessors, compute capability.
    static const std::map<int, int> known{{16, from_environment("FAKE_CUDA_MULTIPROCESSORS", 3)}, {75, 9}, {76, 0}};
    const auto found = known.find(attribute);
    *value = found == known.end() ? SHARED[device] : found->second;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = reinterpret_cast<void*>(intptr_t(device + 1));
    return 0;
}
int cuCtxPushCurrent_v2(void* context) {
    contexts.push_back(context);
    return 0;
}
int cuCtxPopCurrent_v2(void** context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return 0;
}
int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
    // A fatbin: magic number, version and size of the header, size of what follows.
    struct Header {
        uint32_t magic;
        uint16_t version, size;
        uint64_t rest;
    };
    if (reinterpret_cast<uintptr_t>(code) % alignof(Header)) return INVALID_IMAGE;
    const Header& header = *static_cast<const Header*>(code);
    if (header.magic != 0xba55ed50) return INVALID_IMAGE;
    *library = new Image(kernels_of(static_cast<const char*>(code), header.size + header.rest));
    return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    const Image& image = *static_cast<Image*>(library);
    const auto embedded = image.find(name);
    if (embedded == image.end()) return NOT_FOUND;
    void* symbol = nullptr;
    for (void* host : host_libraries) symbol = symbol ? symbol : dlsym(host, name);
    if (!symbol && !std::getenv("FAKE_CUDA_TRACE")) return NOT_FOUND;
    Kernel made{name, reinterpret_cast<KernelFunction>(symbol), embedded->second, {}};
    for (int i = 0; i < DEVICES; ++i) made.dynamic[i] = std::min(SHARED[i], SHARED_WITHOUT_ASKING) - made.own;
    *kernel = &kernels.emplace(name, made).first->second;
    return 0;
}
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
    *value = static_cast<Kernel*>(kernel)->own;
    return attribute == 1 ? 0 : INVALID_VALUE;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    Kernel& changed = *static_cast<Kernel*>(kernel);
    if (attribute != 8 || value < 0 || changed.own + value > SHARED[device]) return INVALID_VALUE;
    changed.dynamic[device] = value;
    return 0;
}
int cuMemsetD32Async(uint64_t address, unsigned value, size_t words, void*) {
    if (contexts.empty()) return INVALID_CONTEXT;
    if (traced("fill", words)) return 0;
    std::fill_n(reinterpret_cast<unsigned*>(address), words, value);
    return 0;
}

// A product of cuBLAS as a search asks for it, out [n, ldc] = b [n, k] a [m, k]^T: of float32 the digits that tensor cores read, or of
// halves.
int cublasGemmEx(void*, int turn_a, int turn_b, int m, int n, int k, const float*, const void* a, int type_a, int lda, const void* b,
                 int type_b, int ldb, const float*, void* out, int type_out, int ldc, int compute, int) {
    const bool fits = turn_a == 1 && turn_b == 0 && type_a == type_b && type_out == 0 && lda >= k && ldb >= k && ldc >= m;
    if (contexts.empty() || !fits || compute != (type_a == 0 ? 77 : 68)) return 7;
    if (traced("product", n, m, k, type_a == 0 ? 4 : 2)) return 0;
    const auto number = [&](const void* from, size_t at) -> double {
        if (type_a == 0) {
            uint32_t bits = static_cast<const uint32_t*>(from)[at];
            if ((bits & 0x7f800000u) != 0x7f800000u) bits &= ~0x1fffu;
            float x;
            std::memcpy(&x, &bits, 4);
            return x;
        }
        const uint16_t half = static_cast<const uint16_t*>(from)[at];
        const int digits = type_a == 2 ? 10 : 7, bias = type_a == 2 ? 15 : 127, most = 2 * bias + 1;
        const int exponent = half >> digits & most, rest = half & ((1 << digits) - 1);
        const double sign = half >> 15 ? -1 : 1;
        if (exponent == most) return rest ? NAN : sign * INFINITY;
        return sign * std::ldexp(rest + (exponent ? 1 << digits : 0), std::max(exponent, 1) - bias - digits);
    };
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < m; ++j) {
            float sum = 0;
            for (int d = 0; d < k; ++d) sum += float(number(b, size_t(i) * ldb + d) * number(a, size_t(j) * lda + d));
            static_cast<float*>(out)[size_t(i) * ldc + j] = sum;
        }
    return 0;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void*, void** arguments, void**) {
    const Kernel& launched = *static_cast<Kernel*>(kernel);
    if (contexts.empty()) return INVALID_CONTEXT;
    const int dynamic = launched.dynamic[reinterpret_cast<intptr_t>(contexts.back()) - 1];
    if (!gx || !gy || gy > 65535 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || int(shared) > dynamic)
        return INVALID_VALUE;
    if (traced(launched.name, gx, gy, bx, shared)) return 0;
    const std::lock_guard<std::mutex> one(launching);
    launched.run(arguments[0], gx, gy, gz, bx, shared);
    return 0;
}

}  // extern "C"
