// CUDA on the host, as far as cuda/ uses it: `g++ -x c++ -include tests/host_cuda.hpp cuda/families/<family>.cu` gives a library whose
// kernels run whole, index code included. Blocks run one after the other; the threads of a block are fibers that give way
// where they communicate, so shuffles, votes and barriers do what they do on a GPU. A barrier that not all threads reach is
// an error, as is memory outside an allocation (with -fsanitize=address).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <setjmp.h>
#include <ucontext.h>

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __shared__ static
#define HD inline

struct dim3 {
    unsigned x, y, z;
};

namespace host {

constexpr int WARP_SIZE = 32;
// Bytes behind the dynamic shared memory that must stay as they are.
constexpr size_t GUARD = 4096;
constexpr char UNTOUCHED = char(0xcd);

struct Fiber {
    ucontext_t context;  // to start from
    jmp_buf jump;        // to go on from: swapcontext would ask the system each time
    bool started;
    std::unique_ptr<char[]> stack;
    enum { READY, IN_WARP, IN_BLOCK, DONE } state;
    unsigned generation;  // how many times it has communicated within its warp
    unsigned votes;       // how many times it has voted within its block
};

inline dim3 grid_dim, block_dim, block_index;
inline std::vector<Fiber> fibers;
inline std::vector<char> dynamic_shared;
inline std::vector<uint64_t> slots;  // [generation % 2][thread]: what lanes show each other
inline std::vector<char> votes;      // [votes % 2][thread]: what threads show all of their block
inline size_t running;
inline jmp_buf scheduler;
inline const std::function<void()>* body;
inline bool backwards;  // in which order threads run

inline dim3 thread_index() { return {unsigned(running), 0, 0}; }

inline void give_way(decltype(Fiber::state) state) {
    Fiber& own = fibers[running];
    own.state = state;
    if (!_setjmp(own.jump)) _longjmp(scheduler, 1);
}

inline void enter() {
    (*body)();
    fibers[running].state = Fiber::DONE;
    _longjmp(scheduler, 1);
}

// Runs the fiber until it gives way.
inline void resume(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.jump, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

// Wakes those of [first, last) that all wait in the same state; those that are done do not count.
inline bool release(size_t first, size_t last, decltype(Fiber::state) state) {
    bool any = false;
    for (size_t i = first; i < last; ++i) {
        if (fibers[i].state == Fiber::DONE) continue;
        if (fibers[i].state != state) return false;
        any = true;
    }
    for (size_t i = first; i < last; ++i)
        if (fibers[i].state == state) fibers[i].state = Fiber::READY;
    return any;
}

inline void run_block() {
    const size_t n = block_dim.x;
    for (size_t i = 0; i < n; ++i) {
        Fiber& fiber = fibers[i];
        fiber.state = Fiber::READY;
        fiber.generation = fiber.votes = 0;
        fiber.started = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = 1 << 17;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    // Each warp goes as far as it can before the next one begins, in every other block from the last one to the first: what
    // threads leave for each other without a barrier between is not there.
    backwards = !backwards;
    const size_t warps = (n + WARP_SIZE - 1) / WARP_SIZE;
    for (bool progress = true; progress;) {
        progress = false;
        for (size_t warp = 0; warp < warps; ++warp) {
            const size_t first = (backwards ? warps - 1 - warp : warp) * WARP_SIZE, last = std::min(first + WARP_SIZE, n);
            do {
                for (size_t i = 0; i < last - first; ++i) {
                    running = backwards ? last - 1 - i : first + i;
                    if (fibers[running].state != Fiber::READY) continue;
                    progress = true;
                    resume(fibers[running]);
                }
            } while (release(first, last, Fiber::IN_WARP));
        }
        progress |= release(0, n, Fiber::IN_BLOCK);
    }
    for (const Fiber& fiber : fibers)
        if (fiber.state != Fiber::DONE) {
            std::fprintf(stderr, "host_cuda: threads of a block wait for each other at different places\n");
            std::abort();
        }
}

inline void launch(dim3 grid, dim3 block, size_t shared, const std::function<void()>& kernel) {
    grid_dim = grid, block_dim = block, body = &kernel;
    fibers.resize(block.x);
    for (Fiber& fiber : fibers)
        if (!fiber.stack) fiber.stack = std::make_unique<char[]>(1 << 17);
    slots.assign(2 * block.x, 0);
    votes.assign(2 * block.x, 0);
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                block_index = {x, y, z};
                dynamic_shared.assign(shared + GUARD, UNTOUCHED);  // nobody may count on zeros
                run_block();
                if (!std::all_of(dynamic_shared.end() - GUARD, dynamic_shared.end(), [](char x) { return x == UNTOUCHED; })) {
                    std::fprintf(stderr, "host_cuda: a write beyond the dynamic shared memory\n");
                    std::abort();
                }
            }
}

// Value of lane `from(lane)` of the warp, once all have shown theirs.
template <typename T>
T exchange(T value, int from) {
    static_assert(sizeof(T) <= 8);
    Fiber& own = fibers[running];
    const size_t base = own.generation++ % 2 * block_dim.x, me = running;
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    slots[base + me] = word;
    give_way(Fiber::IN_WARP);
    const size_t source = me / WARP_SIZE * WARP_SIZE + size_t(from & (WARP_SIZE - 1));
    std::memcpy(&value, &slots[base + source], sizeof(T));
    return value;
}

inline int lane() { return int(running % WARP_SIZE); }

}  // namespace host

#define gridDim host::grid_dim
#define blockDim host::block_dim
#define blockIdx host::block_index
#define threadIdx host::thread_index()

inline void __syncthreads() { host::give_way(host::Fiber::IN_BLOCK); }
inline void __syncwarp(unsigned = 0) { host::exchange(0, 0); }
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
    return host::exchange(value, from);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return host::exchange(value, host::lane() ^ mask);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
    unsigned bits = 0;
    host::exchange(uint32_t(yes), 0);
    // All lanes have shown theirs, and none can show the next one before this one has read.
    const size_t base = (host::fibers[host::running].generation - 1) % 2 * host::block_dim.x;
    const size_t first = host::running / host::WARP_SIZE * host::WARP_SIZE;
    for (int i = 0; i < host::WARP_SIZE && first + i < host::block_dim.x; ++i)
        bits |= unsigned(host::slots[base + first + i] & 1) << i;
    return bits;
}
inline int __syncthreads_or(int yes) {
    host::Fiber& own = host::fibers[host::running];
    // Threads vote in turn in two places: all have read one before any comes back to it.
    const size_t base = own.votes++ % 2 * host::block_dim.x;
    host::votes[base + host::running] = yes != 0;
    __syncthreads();
    return std::any_of(&host::votes[base], &host::votes[base] + host::block_dim.x, [](char vote) { return vote; });
}
inline bool __any_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes) != 0; }
inline bool __all_sync(unsigned mask, bool yes) { return __ballot_sync(mask, !yes) == 0; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
// Threads give way only where they communicate, so nothing comes between.
template <typename T>
T atomicAdd(T* at, T x) {
    const T old = *at;
    *at = old + x;
    return old;
}
template <typename T>
T __ldg(const T* at) {
    return *at;
}

#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(host::dynamic_shared.data())

#define KERNEL(name, Args, threads, ...)                                                                           \
    static void name##_thread(const Args& args);                                                                  \
    extern "C" void name(const void* args, unsigned gx, unsigned gy, unsigned gz, unsigned block, unsigned shared) { \
        if (block > (threads)) std::abort();                                                                      \
        const Args copy = *static_cast<const Args*>(args);                                                        \
        host::launch({gx, gy, gz}, {block, 1, 1}, shared, [&] { name##_thread(copy); });                          \
    }                                                                                                             \
    static void name##_thread(const Args& args)
