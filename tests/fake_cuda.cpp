// A CUDA driver whose device is the host: the functions of libcuda that peaccel calls, on kernels compiled by the host's
// compiler (tests/host_cuda.hpp). What it checks is what the real one would refuse: a kernel that the embedded images lack, a
// block that is too large, shared memory that was not asked for.
//
// PEACCEL_LIBCUDA names it; FAKE_CUDA_KERNELS lists libraries of kernels, with colons between them; FAKE_CUDA_STATUS and
// FAKE_CUDA_VERSION are what cuInit and cuDriverGetVersion say.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace {

using KernelFunction = void (*)(const void*, unsigned, unsigned, unsigned, unsigned, unsigned);

struct Image {
    const char* data;
    size_t size;
};
struct Kernel {
    KernelFunction run;
    unsigned shared;
};

constexpr int INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500;
std::map<std::string, Kernel> kernels;
std::vector<void*> host_libraries;
thread_local std::vector<void*> contexts;
std::mutex launching;  // fibers are shared

int from_environment(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
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
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {34, "CUDA_ERROR_STUB_LIBRARY"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}};
    const auto found = names.find(status);
    if (found == names.end()) return INVALID_VALUE;
    *name = found->second;
    return 0;
}
int cuDeviceGet(int* device, int number) {
    *device = number;
    return number < 2 ? 0 : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 16 ? 3 : 99 * 1024;  // multiprocessors, shared memory of a block
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
    uint32_t magic;
    uint16_t header;
    uint64_t size;
    const char* data = static_cast<const char*>(code);
    std::memcpy(&magic, data, 4), std::memcpy(&header, data + 6, 2), std::memcpy(&size, data + 8, 8);
    if (magic != 0xba55ed50) return 200;
    *library = new Image{data, header + size};
    return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    // The name as a section of the machine code has it.
    const Image& image = *static_cast<Image*>(library);
    const std::string section = std::string(".text.") + name;
    if (!memmem(image.data, image.size, section.c_str(), section.size() + 1)) return NOT_FOUND;
    for (void* host : host_libraries)
        if (void* symbol = dlsym(host, name)) {
            *kernel = &(kernels[name] = {reinterpret_cast<KernelFunction>(symbol), 48 * 1024});
            return 0;
        }
    return NOT_FOUND;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int) {
    if (attribute != 8 || value > 99 * 1024) return INVALID_VALUE;
    static_cast<Kernel*>(kernel)->shared = unsigned(value);
    return 0;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void*, void** arguments, void**) {
    const Kernel& launched = *static_cast<Kernel*>(kernel);
    if (contexts.empty()) return INVALID_CONTEXT;
    if (!gx || !gy || !gz || gy > 65535 || !bx || bx > 1024 || by != 1 || bz != 1 || shared > launched.shared) return INVALID_VALUE;
    const std::lock_guard<std::mutex> one(launching);
    launched.run(arguments[0], gx, gy, gz, bx, shared);
    return 0;
}

}  // extern "C"
