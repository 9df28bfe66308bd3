// The emulated device. It runs the blocks of a launch one after another, and each thread of a block as a fiber
// that runs until it waits: at a barrier, or in a shuffle for the other lanes. Threads that wait for ever are
// found when no thread is left to run.
//
// Kernels are compiled with -fsanitize=thread, which calls a function before every access to memory. Those
// functions are not ThreadSanitizer's but the ones below. They know the arrays passed to the kernel, its
// shared memory, and which barriers its threads have passed, and stop the launch at
//   - an access outside these arrays, or at a misaligned address,
//   - a read of shared memory that no thread of the block has written,
//   - two accesses to one element, one of them a write, by threads with no barrier between them.
#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <vector>

#include "device.h"

namespace emulator {

Index thread_index, block_index;

namespace {

constexpr unsigned MOST_THREADS = 1024, WARP = 32, MANY = ~0u;
constexpr size_t STACK = 128 << 10;

void* reserve(size_t bytes) {  // zeros, which take memory only once touched
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

struct Thread {
    enum { READY, AT_BARRIER, IN_SHUFFLE, DONE } state;
    unsigned number;
    int line;           // of the kernel's source, where it waits
    unsigned mask;      // of the shuffle it waits in
    uint64_t passed, lanes[WARP];
    char* stack;
    jmp_buf context;
};

// Who accessed an element when: the threads of a block between two of its barriers. `block` counts from 1.
struct Access {
    unsigned block, thread, epoch;
};

struct Cell {
    Access write, read;
};

struct Array {
    char* begin;
    uint64_t bytes, item;
    uint64_t loads, load_bytes, stores, store_bytes;
    Cell* cells;
};

Thread threads[MOST_THREADS];
Thread* current;
unsigned thread_count, block_number, epoch;
jmp_buf scheduler, failure;
char* message;
size_t message_bytes;

Array* arrays;
size_t array_count;
Array shared = {nullptr, 0, 2, 0, 0, 0, 0, nullptr};
char *module_begin, *module_end;
const Kernel* kernel;
void* const* arguments;

[[noreturn]] void fail(const char* format, ...) {
    int used = snprintf(message, message_bytes, "block %u thread %u ", block_number - 1, current->number);
    va_list rest;
    va_start(rest, format);
    vsnprintf(message + used, message_bytes - used, format, rest);
    va_end(rest);
    _longjmp(failure, 1);
}

// ------------------------------------------------------------ fibers

void wait() {
    if (!_setjmp(current->context)) _longjmp(scheduler, 1);
}

void resume(Thread& thread) {
    current = &thread;
    thread_index = {thread.number, 0, 0};
    if (!_setjmp(scheduler)) _longjmp(thread.context, 1);
}

void run() {
    for (;;) {
        wait();
        kernel->call(arguments);
        current->state = Thread::DONE;
    }
}

void create(Thread& thread, unsigned number) {
    thread.number = number;
    if (!thread.stack) thread.stack = static_cast<char*>(reserve(STACK));
    static ucontext_t start, here;
    getcontext(&start);
    start.uc_stack = {thread.stack, 0, STACK};
    makecontext(&start, run, 0);
    current = &thread;
    if (!_setjmp(scheduler)) swapcontext(&here, &start);  // until it first waits
}

// A shuffle is over when all lanes in its mask are in it.
bool end_shuffle(Thread& thread) {
    Thread* warp = &threads[thread.number / WARP * WARP];
    const auto each_lane = [&](auto visit) {
        for (unsigned lane = 0; lane < WARP; ++lane)
            if (thread.mask >> lane & 1 && !visit(warp[lane])) return false;
        return true;
    };
    if (!each_lane([&](Thread& other) {
            return other.number < thread_count && other.state == Thread::IN_SHUFFLE && other.mask == thread.mask &&
                   other.line == thread.line;
        }))
        return false;
    each_lane([&](Thread& other) {
        for (unsigned lane = 0; lane < WARP; ++lane) other.lanes[lane] = warp[lane].passed;
        other.state = Thread::READY;
        return true;
    });
    return true;
}

// A barrier is over when all threads of the block are at it.
bool end_barrier() {
    for (unsigned i = 0; i < thread_count; ++i)
        if (threads[i].state != Thread::AT_BARRIER || threads[i].line != threads[0].line) return false;
    for (unsigned i = 0; i < thread_count; ++i) threads[i].state = Thread::READY;
    ++epoch;
    return true;
}

void run_block() {
    epoch = 0;
    memset(shared.begin, 0xff, shared.bytes);  // NaN
    std::fill_n(shared.cells, shared.bytes / shared.item, Cell());
    for (unsigned i = 0; i < thread_count; ++i) threads[i].state = Thread::READY;
    for (bool progress = true; progress;) {
        for (unsigned i = 0; i < thread_count; ++i)
            if (threads[i].state == Thread::READY) resume(threads[i]);
        progress = false;
        for (unsigned i = 0; i < thread_count; ++i)
            if (threads[i].state == Thread::IN_SHUFFLE) progress |= end_shuffle(threads[i]);
        progress = progress || end_barrier();
    }
    for (unsigned i = 0; i < thread_count; ++i) {
        current = &threads[i];
        if (current->state == Thread::IN_SHUFFLE)
            fail("waits for ever in the shuffle on line %d: not all lanes of its mask reach it", current->line);
        if (current->state == Thread::AT_BARRIER)
            fail("waits for ever at the barrier on line %d: not all threads of its block reach it", current->line);
    }
}

// ------------------------------------------------------------ memory

bool unordered(const Access& before, const Access& now) {
    if (before.block == 0) return false;
    return before.block != now.block || (before.epoch == now.epoch && before.thread != now.thread);
}

// Adds a read to those that a later write must be ordered after.
void remember(Access& read, const Access& now) {
    if (read.block != 0 && read.block != now.block)
        read.block = MANY;
    else if (read.block == 0 || read.epoch != now.epoch)
        read = now;
    else if (read.thread != now.thread)
        read.thread = MANY;
}

bool contains(const Array& array, const char* address, uint64_t size) {
    return address >= array.begin && address + size <= array.begin + array.bytes;
}

// `code` is where the access is: the host turns {its offset in this module} into a line.
void access(char* address, uint64_t size, bool write, bool aligned, void* code) {
    if (address >= module_begin && address < module_end) return;  // constants, threadIdx
    if (address >= current->stack && address < current->stack + STACK) return;
    const char* verb = write ? "writes" : "reads";
    const long at = static_cast<char*>(code) - module_begin;
    Array* array = contains(shared, address, size) ? &shared : nullptr;
    for (size_t i = 0; i < array_count && !array; ++i)
        if (contains(arrays[i], address, size)) array = &arrays[i];
    if (!array) fail("%s %lu bytes outside every array, {%lx}", verb, size, at);
    char name[40] = "shared memory";
    if (array != &shared) snprintf(name, sizeof name, "array %ld", long(array - arrays));
    if (aligned && reinterpret_cast<uintptr_t>(address) % size)
        fail("%s %lu bytes at a misaligned address of %s, {%lx}", verb, size, name, at);
    ++(write ? array->stores : array->loads);
    (write ? array->store_bytes : array->load_bytes) += size;

    const Access now = {block_number, current->number, epoch};
    const uint64_t offset = address - array->begin;
    for (uint64_t i = offset / array->item; i <= (offset + size - 1) / array->item; ++i) {
        Cell& cell = array->cells[i];
        if (!write && array == &shared && cell.write.block == 0)
            fail("reads shared memory that no thread has written, {%lx}", at);
        if (unordered(cell.write, now) || (write && unordered(cell.read, now)))
            fail("%s element %lu of %s in a race with another thread's %s, {%lx}", verb, i, name,
                 unordered(cell.write, now) ? "write" : "read", at);
        if (write) cell.write = now;
        else remember(cell.read, now);
    }
}

thread_local volatile char shared_exists;  // written to before each launch, so that there is a segment

// Where this module lies in memory, and its thread-local segment: the __shared__ variables.
int find_segments(dl_phdr_info* info, size_t, void*) {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(find_segments), &self);
    if (reinterpret_cast<void*>(info->dlpi_addr) != self.dli_fbase) return 0;
    module_begin = static_cast<char*>(self.dli_fbase);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        char* end = module_begin + segment.p_vaddr + segment.p_memsz;
        if (segment.p_type == PT_LOAD) module_end = std::max(module_end, end);
        if (segment.p_type != PT_TLS) continue;
        shared.begin = static_cast<char*>(info->dlpi_tls_data);
        shared.bytes = segment.p_memsz;
    }
    return 1;
}

}  // namespace

void barrier(int line) {
    current->line = line;
    current->state = Thread::AT_BARRIER;
    wait();
}

uint64_t exchange(unsigned mask, uint64_t mine, unsigned from, int line) {
    if (!(mask >> this_lane() & 1)) fail("is not in the mask of its own shuffle on line %d", line);
    if (!(mask >> from & 1)) fail("reads lane %u, not in the mask, in the shuffle on line %d", from, line);
    current->line = line;
    current->mask = mask;
    current->passed = mine;
    current->state = Thread::IN_SHUFFLE;
    wait();
    return current->lanes[from];
}

unsigned this_lane() { return current->number % WARP; }

}  // namespace emulator

using namespace emulator;

// Runs blocks `first` to `last` of a launch; returns 0, or 1 with `text` saying what went wrong.
extern "C" int emulator_launch(const Kernel* launched, uint64_t first, uint64_t last, unsigned block_size,
                               void* const* passed, Array* used, size_t used_count, char* text, size_t text_bytes) {
    shared_exists = 1;
    dl_iterate_phdr(find_segments, nullptr);
    kernel = launched, arguments = passed;
    arrays = used, array_count = used_count;
    message = text, message_bytes = text_bytes;
    thread_count = block_size;

    const auto cell_bytes = [](const Array& array) { return (array.bytes / array.item + 1) * sizeof(Cell); };
    const auto each_array = [&](auto visit) {
        visit(shared);
        for (size_t i = 0; i < array_count; ++i) visit(arrays[i]);
    };
    each_array([&](Array& array) { array.cells = static_cast<Cell*>(reserve(cell_bytes(array))); });
    for (unsigned i = 0; i < thread_count; ++i) create(threads[i], i);

    const int failed = _setjmp(failure);
    if (!failed)
        for (uint64_t block = first; block < last; ++block) {
            block_number = block + 1;
            block_index = {unsigned(block), 0, 0};
            run_block();
        }
    each_array([&](Array& array) { munmap(array.cells, cell_bytes(array)); });
    return failed;
}

// What -fsanitize=thread calls.
#define ACCESS(name, size, write, aligned)                                                             \
    extern "C" void __tsan_##name(char* address) {                                                     \
        access(address, size, write, aligned, __builtin_return_address(0));                            \
    }
#define ACCESSES(size)                                                                                 \
    ACCESS(read##size, size, false, true) ACCESS(write##size, size, true, true)                        \
    ACCESS(unaligned_read##size, size, false, false) ACCESS(unaligned_write##size, size, true, false)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
extern "C" void __tsan_read_range(char* address, size_t size) {
    access(address, size, false, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(char* address, size_t size) {
    access(address, size, true, false, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
