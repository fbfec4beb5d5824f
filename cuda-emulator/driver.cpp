// The driver of an emulated GPU: libcuda.so with the calls that backend-cuda and cudarc make. Work runs when it is
// enqueued, so that streams and events only keep their order. Numbers of the device are those of one NVIDIA H200, but
// for the memory (FMM_EMULATOR_MEMORY bytes, 4 GiB if not set). There is one device, or FMM_EMULATOR_DEVICES, which
// share the memory, but cannot read each other's arrays.
//
// Device memory is memory of the host between pages that nobody can read: an access beyond an array ends the process
// with the name of the kernel. Freed memory cannot be read either, and fresh memory holds NaN. Copies, and pointers
// among the arguments of kernels, must lie in device memory.
//
// By default there are no pools of memory, so that each array has memory of its own. With FMM_EMULATOR_POOLS=1 there are,
// as on a real GPU; backend-cuda then takes freed arrays again, and an access beyond an array or to a freed one may go
// unnoticed.
//
// Another process can open memory outside the pools that is a multiple of two megabytes. To free memory that may be open
// elsewhere ends the process.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "image.hpp"

namespace {

using emulated::Address;
using emulated::Dim3;
using emulated::fail;

// Results of calls (CUresult).
enum Result : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
};

struct Context {};
constexpr int MAX_DEVICES = 8;
Context primary[MAX_DEVICES];
const int devices = std::max(1, std::min(MAX_DEVICES, (int)emulated::setting("FMM_EMULATOR_DEVICES", 1)));
thread_local Context* bound = nullptr;
bool initialised = false;

struct Stream {
  Context* context;
};
struct Event {
  Context* context;
  bool timed, recorded = false;
  std::chrono::steady_clock::time_point at;
};
struct Module {
  void* library;
  Context* context;
};
struct Function {
  std::string name;
  const emulated::Kernel* kernel;
  std::size_t module_id;
  Context* context;
  unsigned dynamic_bytes = 48 << 10;
};

// Handles that are live: a call with any other is refused.
template <class T>
struct Live {
  std::mutex lock;
  std::set<T*> all;
  T* add(T* one) {
    std::lock_guard<std::mutex> guard(lock);
    all.insert(one);
    return one;
  }
  bool has(T* one) {
    std::lock_guard<std::mutex> guard(lock);
    return all.count(one) > 0;
  }
  bool remove(T* one) {
    std::lock_guard<std::mutex> guard(lock);
    return all.erase(one) > 0;
  }
};
// Never destroyed: other threads may still call when the process ends.
template <class T>
Live<T>& live() {
  static Live<T>& only = *new Live<T>;
  return only;
}
bool is_stream(Stream* stream) {
  // 0, 1 and 2 are the default streams.
  return (Address)stream <= 2 || live<Stream>().has(stream);
}

Context* context_of(Stream* stream) { return (Address)stream <= 2 ? bound : stream->context; }

enum class Kind { Plain, Pooled, Pinned };
struct Allocation {
  std::size_t bytes;
  char* room;
  std::size_t room_bytes;
  Kind kind;
  Context* owner;
  // File of the memory that other processes can open; -1 if they cannot.
  int file = -1;
  // Whether another process may have opened it.
  bool handed_out = false;
};

// All memory of the device, and pinned memory of the host.
struct Memory {
  std::mutex lock;
  std::map<Address, Allocation> all;
  std::size_t used[3] = {}, reserved = 0;
  const std::size_t total = emulated::setting("FMM_EMULATOR_MEMORY", 4ull << 30);

  std::size_t kept() const { return std::max(reserved, used[(int)Kind::Pooled]); }
  std::size_t free() const { return total - used[(int)Kind::Plain] - kept(); }
} & memory = *new Memory;

constexpr std::size_t PAGE = 4096, ALIGNMENT = 16;
// Memory that other processes can open is a multiple of this.
constexpr std::size_t SHARED_BLOCK = 2 << 20;
// Larger arrays are not filled when they are made, as that would need as much memory of the host.
constexpr std::size_t MAX_FILLED = 256 << 20;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

Result allocate(Address* at, std::size_t bytes, Kind kind) {
  if (!at || bytes == 0) return INVALID_VALUE;
  if (!bound) return INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(memory.lock);
  if (kind != Kind::Pinned) {
    const std::size_t used = memory.used[(int)Kind::Plain] + memory.used[(int)Kind::Pooled];
    if (bytes > memory.total - used) return OUT_OF_MEMORY;
  }
  // The array ends at a page that nobody can read, but for the alignment.
  const std::size_t body = round_up(bytes, PAGE), room_bytes = body + 2 * PAGE;
  char* room = (char*)mmap(nullptr, room_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return OUT_OF_MEMORY;
  int file = -1;
  if (kind == Kind::Plain && bytes % SHARED_BLOCK == 0) {
    file = memfd_create("device memory", MFD_CLOEXEC);
    const int how = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    if (file < 0 || ftruncate(file, body) || mmap(room + PAGE, body, PROT_READ | PROT_WRITE, how, file, 0) == MAP_FAILED)
      fail("no memory that other processes can open");
  }
  if (mprotect(room, PAGE, PROT_NONE) || mprotect(room + PAGE + body, PAGE, PROT_NONE)) fail("no guards around memory");
  char* first = room + PAGE + body - round_up(bytes, ALIGNMENT);
  if (bytes <= MAX_FILLED) emulated::fill_fresh(first, room + PAGE + body - first);
  memory.all[(Address)first] = {bytes, room, room_bytes, kind, bound, file};
  memory.used[(int)kind] += bytes;
  if (kind != Kind::Pinned)
    memory.reserved = std::min(std::max(memory.reserved, memory.used[(int)Kind::Pooled]),
                               memory.total - memory.used[(int)Kind::Plain]);
  *at = (Address)first;
  return SUCCESS;
}

Result release(Address at, bool pinned, const Context* context = bound) {
  if (!context) return INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(memory.lock);
  const auto found = memory.all.find(at);
  if (found == memory.all.end() || (found->second.kind == Kind::Pinned) != pinned) return INVALID_VALUE;
  const Allocation& a = found->second;
  if (a.bytes <= MAX_FILLED) {
    // The bytes up to the alignment still hold what they held at first.
    char fresh[ALIGNMENT];
    const std::size_t rest = round_up(a.bytes, ALIGNMENT) - a.bytes;
    std::size_t from = a.bytes % 4;
    char pattern[2 * ALIGNMENT];
    emulated::fill_fresh(pattern, sizeof(pattern));
    std::memcpy(fresh, pattern + from, rest);
    const char* tail = (const char*)at + a.bytes;
    // A last word of fewer than four bytes is filled byte by byte; the room is a multiple of four bytes, so it is not.
    if (std::memcmp(tail, fresh, rest) != 0) fail("something was written beyond an array of %zu bytes", a.bytes);
  }
  if (a.handed_out) fail("memory that another process may have opened is freed");
  if (a.file >= 0) close(a.file);
  munmap(a.room, a.room_bytes);
  memory.used[(int)a.kind] -= a.bytes;
  memory.all.erase(found);
  return SUCCESS;
}

// The allocation that holds an address or ends at it. Needs the lock.
const Allocation* holding(Address at, Address* start) {
  auto next = memory.all.upper_bound(at);
  if (next == memory.all.begin()) return nullptr;
  --next;
  if (at > next->first + next->second.bytes) return nullptr;
  *start = next->first;
  return &next->second;
}
// Whether these bytes are memory of a device (of the bound one, if it is not named), or pinned.
bool in_device_memory(Address at, std::size_t bytes, const Context* of = bound) {
  std::lock_guard<std::mutex> guard(memory.lock);
  Address start;
  const Allocation* a = holding(at, &start);
  return a && at + bytes <= start + a->bytes && (a->kind == Kind::Pinned || a->owner == of);
}
// Whether a copy may take this for memory of the host.
bool in_host_memory(const void* at) {
  std::lock_guard<std::mutex> guard(memory.lock);
  Address start;
  const Allocation* a = holding((Address)at, &start);
  return at && (!a || a->kind == Kind::Pinned || (Address)at == start + a->bytes);
}

Result to_device(Address to, const void* from, std::size_t bytes) {
  if (!bound) return INVALID_CONTEXT;
  if (bytes == 0) return SUCCESS;
  if (!in_device_memory(to, bytes) || !in_host_memory(from)) return INVALID_VALUE;
  std::memcpy((void*)to, from, bytes);
  return SUCCESS;
}
Result to_host(void* to, Address from, std::size_t bytes) {
  if (!bound) return INVALID_CONTEXT;
  if (bytes == 0) return SUCCESS;
  if (!in_device_memory(from, bytes) || !in_host_memory(to)) return INVALID_VALUE;
  std::memcpy(to, (const void*)from, bytes);
  return SUCCESS;
}
Result on_device(Address to, Address from, std::size_t bytes) {
  if (!bound) return INVALID_CONTEXT;
  if (bytes == 0) return SUCCESS;
  if (!in_device_memory(to, bytes) || !in_device_memory(from, bytes)) return INVALID_VALUE;
  std::memmove((void*)to, (const void*)from, bytes);
  return SUCCESS;
}
Result set_bytes(Address to, unsigned char value, std::size_t bytes) {
  if (!bound) return INVALID_CONTEXT;
  if (bytes == 0) return SUCCESS;
  if (!in_device_memory(to, bytes)) return INVALID_VALUE;
  char *first = (char*)round_up(to, PAGE), *end = (char*)((to + bytes) & ~(Address)(PAGE - 1));
  if (value == 0 && bytes > MAX_FILLED) {
    // New pages are zeros, and take no memory of the host until they are used.
    std::memset((char*)to, 0, first - (char*)to);
    if (mmap(first, end - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
      fail("no memory");
    std::memset(end, 0, (char*)to + bytes - end);
  } else {
    std::memset((void*)to, value, bytes);
  }
  return SUCCESS;
}

// A launch, with the arguments in its own memory.
struct Call {
  Function* function;
  Dim3 grid, block;
  std::vector<std::vector<char>> arguments;
};

// Checks a launch as the driver would, and takes its arguments.
Result take_call(Function* function, Dim3 grid, Dim3 block, unsigned bytes, void** given, Call* call) {
  if (!live<Function>().has(function)) return INVALID_HANDLE;
  if (!bound || function->context != bound) return INVALID_CONTEXT;
  const emulated::Kernel& kernel = *function->kernel;
  const unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
  const bool grid_fits = grid.x - 1 < 0x7fffffffu && grid.y - 1 < 65535u && grid.z - 1 < 65535u;
  if (!grid_fits || threads == 0 || threads > std::min(1024u, kernel.max_threads)) return INVALID_VALUE;
  if (bytes > function->dynamic_bytes) return INVALID_VALUE;
  *call = {function, grid, block, {}};
  for (unsigned i = 0; i < kernel.count; ++i) {
    const char* from = (const char*)given[i];
    call->arguments.emplace_back(from, from + kernel.bytes[i]);
    if (!kernel.pointers[i]) continue;
    Address at;
    std::memcpy(&at, from, sizeof(at));
    if (at != 0 && !in_device_memory(at, 0))
      fail("argument %u of %s is %#zx, no address of device memory", i, function->name.c_str(), (std::size_t)at);
  }
  return SUCCESS;
}

void make_call(const Call& call) {
  std::vector<void*> places;
  for (const auto& argument : call.arguments) places.push_back((void*)argument.data());
  const Function& f = *call.function;
  emulated::run({f.name.c_str(), f.kernel, call.grid, call.block, places.data(), f.module_id});
}

struct Node {
  std::vector<std::size_t> after;
  // A node without a function fills memory.
  Call call;
  Address to;
  std::size_t bytes;
};
struct Graph {
  // A handle of a node is a pointer into this list.
  std::vector<std::unique_ptr<Node>> nodes;
};
struct Ready {
  std::vector<Node> nodes;
};

Result add_node(Node** out, Graph* graph, Node* const* after, std::size_t count, Node node) {
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t k = 0;
    while (k < graph->nodes.size() && graph->nodes[k].get() != after[i]) ++k;
    if (k == graph->nodes.size()) return INVALID_VALUE;
    node.after.push_back(k);
  }
  graph->nodes.push_back(std::make_unique<Node>(std::move(node)));
  *out = graph->nodes.back().get();
  return SUCCESS;
}

// Runs nodes in an order that respects what each must wait for, and nothing else: of those that may run, the last.
Result run_graph(const Ready& ready) {
  const std::size_t n = ready.nodes.size();
  std::vector<bool> done(n, false);
  for (std::size_t ran = 0; ran < n; ++ran) {
    std::size_t k = n;
    while (k-- > 0) {
      const auto& after = ready.nodes[k].after;
      if (!done[k] && std::all_of(after.begin(), after.end(), [&](std::size_t a) { return done[a]; })) break;
    }
    const Node& node = ready.nodes[k];
    done[k] = true;
    if (node.call.function) {
      make_call(node.call);
    } else if (const Result result = set_bytes(node.to, 0, node.bytes)) {
      return result;
    }
  }
  return SUCCESS;
}

}  // namespace

#define CALL extern "C" __attribute__((visibility("default"))) int

namespace {

// How often each call was made. With FMM_EMULATOR_CALLS=1 the numbers are printed when the process ends.
struct Counts {
  std::mutex lock;
  std::map<std::string, unsigned long long> of;
} & counts = *new Counts;
struct AtEnd {
  ~AtEnd() {
    if (!emulated::setting("FMM_EMULATOR_CALLS", 0)) return;
    std::lock_guard<std::mutex> guard(counts.lock);
    for (const auto& [name, count] : counts.of) std::fprintf(stderr, "%8llu %s\n", count, name.c_str());
  }
} at_end;
void counted(const char* name) {
  std::lock_guard<std::mutex> guard(counts.lock);
  ++counts.of[name];
}

}  // namespace

// The number of calls by a name so far. For tests.
extern "C" __attribute__((visibility("default"))) unsigned long long emulatedCalls(const char* name) {
  std::lock_guard<std::mutex> guard(counts.lock);
  const auto found = counts.of.find(name);
  return found == counts.of.end() ? 0 : found->second;
}

// The device.
CALL cuInit(unsigned) {
  initialised = true;
  return SUCCESS;
}
CALL cuDriverGetVersion(int* version) {
  // Not a version of NVIDIA's, so that no stored program of a real device is loaded.
  *version = 13009;
  return SUCCESS;
}
CALL cuDeviceGetCount(int* count) {
  if (!initialised) return NOT_INITIALIZED;
  *count = devices;
  return SUCCESS;
}
CALL cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}
CALL cuDeviceGetName(char* name, int length, int) {
  std::snprintf(name, length, "emulated GPU");
  return SUCCESS;
}
CALL cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = memory.total;
  return SUCCESS;
}
CALL cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> numbers = {
      {1, 1024},      // threads per block
      {2, 1024},      // extent of a block
      {3, 1024},      {4, 64},
      {5, 2147483647},  // extent of a grid
      {6, 65535},     {7, 65535},
      {8, 48 << 10},  // shared memory per block
      {10, 32},       // warp
      {12, 65536},    // registers per block
      {13, 1980000},  // clock, kHz
      {16, 132},      // multiprocessors
      {36, 3201000},  // clock of the memory, kHz
      {37, 6144},     // bits of the memory bus
      {38, 60 << 20},  // second-level cache
      {39, 2048},     // threads per multiprocessor
      {75, 9},        // compute capability
      {76, 0},
      {81, 233472},  // shared memory per multiprocessor
      {97, (int)emulated::MAX_DYNAMIC_BYTES},  // shared memory per block, on demand
      {106, 32},      // blocks per multiprocessor
      {111, 1024},    // shared memory that the system takes per block
      {115, (int)emulated::setting("FMM_EMULATOR_POOLS", 0)},  // pools of memory
  };
  const auto found = numbers.find(attribute);
  if (found == numbers.end()) return INVALID_VALUE;
  *value = found->second;
  return SUCCESS;
}
CALL cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device < 0 || device >= devices) return INVALID_DEVICE;
  *context = &primary[device];
  return SUCCESS;
}
CALL cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
CALL cuCtxSetCurrent(Context* context) {
  if (context && (context < primary || context >= primary + devices)) return INVALID_CONTEXT;
  bound = context;
  return SUCCESS;
}
CALL cuCtxGetCurrent(Context** context) {
  *context = bound;
  return SUCCESS;
}
CALL cuCtxEnablePeerAccess(Context* peer, unsigned) {
  return bound && peer != bound && peer >= primary && peer < primary + devices ? SUCCESS : INVALID_CONTEXT;
}
CALL cuCtxSynchronize() { return bound ? SUCCESS : INVALID_CONTEXT; }
CALL cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return SUCCESS;
}

// Memory.
CALL cuMemAlloc_v2(Address* at, std::size_t bytes) {
  counted(__func__);
  return allocate(at, bytes, Kind::Plain);
}
CALL cuMemFree_v2(Address at) {
  counted(__func__);
  return at ? release(at, false) : SUCCESS;
}
// What a handle of memory holds.
struct Handed {
  long process;
  int file;
  std::size_t bytes;
};
struct MemHandle {
  char reserved[64];
};
static_assert(sizeof(Handed) <= sizeof(MemHandle));
CALL cuIpcGetMemHandle(MemHandle* handle, Address at) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(memory.lock);
  const auto found = memory.all.find(at);
  if (found == memory.all.end() || found->second.file < 0) return INVALID_VALUE;
  found->second.handed_out = true;
  const Handed handed{(long)getpid(), found->second.file, found->second.bytes};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &handed, sizeof(handed));
  return SUCCESS;
}
CALL cuIpcOpenMemHandle_v2(Address* at, MemHandle handle, unsigned) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  Handed handed;
  std::memcpy(&handed, &handle, sizeof(handed));
  // A process cannot open its own memory.
  if (handed.process == (long)getpid()) return INVALID_CONTEXT;
  const std::string path = "/proc/" + std::to_string(handed.process) + "/fd/" + std::to_string(handed.file);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return INVALID_HANDLE;
  // To read it alone: nobody here writes memory of another process.
  char* room = (char*)mmap(nullptr, handed.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (room == MAP_FAILED) return OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(memory.lock);
  // It takes no memory of this device.
  memory.all[(Address)room] = {handed.bytes, room, handed.bytes, Kind::Plain, bound};
  *at = (Address)room;
  return SUCCESS;
}
CALL cuMemAllocAsync(Address* at, std::size_t bytes, Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? allocate(at, bytes, Kind::Pooled) : INVALID_HANDLE;
}
CALL cuMemFreeAsync(Address at, Stream* stream) {
  counted(__func__);
  if (!is_stream(stream)) return INVALID_HANDLE;
  // A stream knows its context, so that a thread without one may free.
  return at ? release(at, false, context_of(stream)) : SUCCESS;
}
CALL cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  counted(__func__);
  return allocate((Address*)at, bytes, Kind::Pinned);
}
CALL cuMemFreeHost(void* at) { return release((Address)at, true); }
// Memory of the process, which all copies take.
CALL cuMemHostRegister_v2(void* at, std::size_t bytes, unsigned) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  return at && bytes ? SUCCESS : INVALID_VALUE;
}
CALL cuMemHostUnregister(void* at) { return at ? SUCCESS : INVALID_VALUE; }
CALL cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(memory.lock);
  *free = memory.free(), *total = memory.total;
  return SUCCESS;
}
CALL cuDeviceGetDefaultMemPool(void** pool, int device) {
  if (device < 0 || device >= devices) return INVALID_DEVICE;
  *pool = &memory;
  return SUCCESS;
}
CALL cuMemPoolSetAttribute(void* pool, int, void*) { return pool == &memory ? SUCCESS : INVALID_VALUE; }
CALL cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
  if (pool != &memory) return INVALID_VALUE;
  std::lock_guard<std::mutex> guard(memory.lock);
  std::size_t bytes;
  switch (attribute) {
    case 5: bytes = memory.kept(); break;                    // taken from the device
    case 7: bytes = memory.used[(int)Kind::Pooled]; break;  // used
    default: return INVALID_VALUE;
  }
  std::memcpy(value, &bytes, sizeof(bytes));
  return SUCCESS;
}
CALL cuMemPoolTrimTo(void* pool, std::size_t keep) {
  if (pool != &memory) return INVALID_VALUE;
  std::lock_guard<std::mutex> guard(memory.lock);
  memory.reserved = std::min(memory.reserved, std::max(keep, memory.used[(int)Kind::Pooled]));
  return SUCCESS;
}
CALL cuPointerGetAttribute(void* value, int attribute, Address at) {
  // 9: the number of the device.
  std::lock_guard<std::mutex> guard(memory.lock);
  Address start;
  const Allocation* a = holding(at, &start);
  if (attribute != 9 || !a || at >= start + a->bytes) return INVALID_VALUE;
  const int device = (int)(a->owner - primary);
  std::memcpy(value, &device, sizeof(device));
  return SUCCESS;
}
CALL cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  counted(__func__);
  return to_device(to, from, bytes);
}
CALL cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  counted(__func__);
  return to_host(to, from, bytes);
}
CALL cuMemcpyDtoD_v2(Address to, Address from, std::size_t bytes) {
  counted(__func__);
  return on_device(to, from, bytes);
}
CALL cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? to_device(to, from, bytes) : INVALID_HANDLE;
}
CALL cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? to_host(to, from, bytes) : INVALID_HANDLE;
}
CALL cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? on_device(to, from, bytes) : INVALID_HANDLE;
}
CALL cuMemcpyPeerAsync(Address to, Context* there, Address from, Context* here, std::size_t bytes, Stream* stream) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  if (!is_stream(stream)) return INVALID_HANDLE;
  if (!in_device_memory(to, bytes, there) || !in_device_memory(from, bytes, here)) return INVALID_VALUE;
  if (bytes > 0) std::memmove((void*)to, (const void*)from, bytes);
  return SUCCESS;
}
CALL cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
  counted(__func__);
  return set_bytes(to, value, bytes);
}
CALL cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? set_bytes(to, value, bytes) : INVALID_HANDLE;
}

// Streams and events.
CALL cuStreamCreate(Stream** stream, unsigned) {
  if (!bound) return INVALID_CONTEXT;
  *stream = live<Stream>().add(new Stream{bound});
  return SUCCESS;
}
CALL cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
CALL cuStreamDestroy_v2(Stream* stream) {
  if (!live<Stream>().remove(stream)) return INVALID_HANDLE;
  delete stream;
  return SUCCESS;
}
CALL cuStreamSynchronize(Stream* stream) {
  counted(__func__);
  return is_stream(stream) ? SUCCESS : INVALID_HANDLE;
}
CALL cuStreamGetCtx(Stream* stream, Context** context) {
  if (!is_stream(stream)) return INVALID_HANDLE;
  *context = context_of(stream);
  return SUCCESS;
}
CALL cuStreamIsCapturing(Stream* stream, int* status) {
  *status = 0;
  return is_stream(stream) ? SUCCESS : INVALID_HANDLE;
}
CALL cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  counted(__func__);
  return is_stream(stream) && live<Event>().has(event) ? SUCCESS : INVALID_HANDLE;
}
CALL cuEventCreate(Event** event, unsigned flags) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  *event = live<Event>().add(new Event{bound, (flags & 2) == 0, false, {}});
  return SUCCESS;
}
CALL cuEventDestroy_v2(Event* event) {
  if (!live<Event>().remove(event)) return INVALID_HANDLE;
  delete event;
  return SUCCESS;
}
CALL cuEventRecord(Event* event, Stream* stream) {
  counted(__func__);
  if (!live<Event>().has(event) || !is_stream(stream) || event->context != context_of(stream)) return INVALID_HANDLE;
  event->recorded = true, event->at = std::chrono::steady_clock::now();
  return SUCCESS;
}
CALL cuEventQuery(Event* event) { return live<Event>().has(event) ? SUCCESS : INVALID_HANDLE; }
CALL cuEventSynchronize(Event* event) {
  counted(__func__);
  return live<Event>().has(event) ? SUCCESS : INVALID_HANDLE;
}
CALL cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
  for (Event* event : {from, to})
    if (!live<Event>().has(event) || !event->timed || !event->recorded) return INVALID_HANDLE;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return SUCCESS;
}
CALL cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
  return cuEventElapsedTime_v2(milliseconds, from, to);
}

// Programs.
CALL cuModuleLoadData(Module** module, const void* image) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  emulated::ImageHead head;
  std::memcpy(&head, image, sizeof(head));
  if (std::memcmp(head.magic, emulated::IMAGE_MAGIC, sizeof(head.magic)) != 0) return INVALID_IMAGE;
  // A name of its own, as the loader takes two files of one name for one library.
  char name[] = "/tmp/fmm-emulator-XXXXXX";
  const int file = mkstemp(name);
  const char* at = (const char*)image + sizeof(head);
  for (std::size_t left = head.bytes; left > 0;) {
    const ssize_t written = write(file, at, left);
    if (written <= 0) fail("cannot write a program to %s", name);
    at += written, left -= written;
  }
  close(file);
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  unlink(name);
  if (!library) fail("cannot load a program: %s", dlerror());
  ((void (*)(const emulated::Runtime*))dlsym(library, "emulated_bind"))(&emulated::RUNTIME);
  *module = live<Module>().add(new Module{library, bound});
  return SUCCESS;
}
// A program stays loaded, so that no later program takes its place in memory.
CALL cuModuleUnload(Module* module) { return live<Module>().remove(module) ? SUCCESS : INVALID_HANDLE; }
CALL cuModuleGetFunction(Function** function, Module* module, const char* name) {
  if (!live<Module>().has(module)) return INVALID_HANDLE;
  const auto* kernel = (const emulated::Kernel*)dlsym(module->library, (std::string("emulated_kernel_") + name).c_str());
  if (!kernel) return NOT_FOUND;
  Dl_info info;
  dladdr(kernel, &info);
  *function = live<Function>().add(new Function{name, kernel, (std::size_t)info.dli_fbase, module->context});
  return SUCCESS;
}
CALL cuFuncSetAttribute(Function* function, int attribute, int value) {
  if (!live<Function>().has(function)) return INVALID_HANDLE;
  // 8: the largest dynamic shared memory.
  if (attribute != 8 || value < 0 || (unsigned)value > emulated::MAX_DYNAMIC_BYTES) return INVALID_VALUE;
  function->dynamic_bytes = (unsigned)value;
  return SUCCESS;
}
CALL cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                    unsigned bytes, Stream* stream, void** arguments, void**) {
  counted(__func__);
  if (!is_stream(stream)) return INVALID_HANDLE;
  Call call;
  const Result result = take_call(function, {gx, gy, gz}, {bx, by, bz}, bytes, arguments, &call);
  if (result == SUCCESS) make_call(call);
  return result;
}

// Graphs.
struct KernelNode {
  Function* function;
  unsigned gx, gy, gz, bx, by, bz, bytes;
  void** arguments;
  void** extra;
  void *kernel, *context;
};
struct FillNode {
  Address to;
  std::size_t pitch;
  unsigned value, size;
  std::size_t width, height;
};
CALL cuGraphCreate(Graph** graph, unsigned) {
  *graph = live<Graph>().add(new Graph);
  return SUCCESS;
}
CALL cuGraphDestroy(Graph* graph) {
  if (!live<Graph>().remove(graph)) return INVALID_HANDLE;
  delete graph;
  return SUCCESS;
}
CALL cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* after, std::size_t count, const KernelNode* k) {
  if (!live<Graph>().has(graph)) return INVALID_HANDLE;
  Call call;
  const Result result =
      take_call(k->function, {k->gx, k->gy, k->gz}, {k->bx, k->by, k->bz}, k->bytes, k->arguments, &call);
  return result ? result : add_node(node, graph, after, count, {{}, std::move(call), 0, 0});
}
CALL cuGraphKernelNodeSetAttribute(Node*, int, const void*) { return SUCCESS; }
CALL cuGraphAddMemsetNode(Node** node, Graph* graph, Node* const* after, std::size_t count, const FillNode* f, Context*) {
  if (!live<Graph>().has(graph)) return INVALID_HANDLE;
  const std::size_t bytes = f->size * f->width;
  if (f->value != 0 || f->height != 1 || !in_device_memory(f->to, bytes)) return INVALID_VALUE;
  return add_node(node, graph, after, count, {{}, {}, f->to, bytes});
}
CALL cuGraphInstantiateWithFlags(Ready** ready, Graph* graph, unsigned long long) {
  if (!live<Graph>().has(graph)) return INVALID_HANDLE;
  *ready = live<Ready>().add(new Ready);
  for (const auto& node : graph->nodes) (*ready)->nodes.push_back(*node);
  return SUCCESS;
}
CALL cuGraphExecDestroy(Ready* ready) {
  if (!live<Ready>().remove(ready)) return INVALID_HANDLE;
  delete ready;
  return SUCCESS;
}
CALL cuGraphLaunch(Ready* ready, Stream* stream) {
  counted(__func__);
  if (!bound) return INVALID_CONTEXT;
  return live<Ready>().has(ready) && is_stream(stream) ? run_graph(*ready) : INVALID_HANDLE;
}

// Texts.
CALL cuGetErrorName(int result, const char** text) {
  switch (result) {
    case SUCCESS: *text = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *text = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case INVALID_DEVICE: *text = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_IMAGE: *text = "CUDA_ERROR_INVALID_IMAGE"; break;
    case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case INVALID_HANDLE: *text = "CUDA_ERROR_INVALID_HANDLE"; break;
    case NOT_FOUND: *text = "CUDA_ERROR_NOT_FOUND"; break;
    default: *text = nullptr; return INVALID_VALUE;
  }
  return SUCCESS;
}
CALL cuGetErrorString(int result, const char** text) { return cuGetErrorName(result, text); }
