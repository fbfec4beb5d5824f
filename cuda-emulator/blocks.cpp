// Runs the blocks of a launch on the threads of the host. The threads of a block are fibers of one host thread: each
// has a stack of its own, and the host thread turns to another one when a thread waits at a barrier or in an operation
// of its warp.
//
// To make mistakes show, the threads of a block run in an order that changes from turn to turn, the blocks of a grid
// do not start in their order, shared memory holds NaN when a block starts, and asynchronous copies arrive early or
// late. FMM_EMULATOR_SEED chooses the orders.
#include "blocks.hpp"

#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the emulator switches between threads with instructions of x86-64 and calls of Linux"
#endif

// Saves the registers that a call preserves, and the stack pointer in *from. Goes on where `to` was saved.
extern "C" void emulated_switch(void** from, void* to);
__asm__(
    ".text\n"
    ".globl emulated_switch\n"
    ".hidden emulated_switch\n"
    ".type emulated_switch,@function\n"
    "emulated_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emulated_switch, .-emulated_switch\n");

namespace emulated {

namespace {

constexpr unsigned MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP;
// The stacks of the threads begin at different places, as otherwise all would use the same lines of the cache.
constexpr Address COLOURS = 61, COLOUR_BYTES = 192;

enum class State : unsigned char { Ready, AtBarrier, InWarp, Done };

// One copy that is on its way.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
};
struct Copies {
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

unsigned random_below(unsigned long long& state, unsigned n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)((state >> 33) % n);
}

// What a host thread needs to run blocks.
struct Worker {
  char* stacks = nullptr;
  void* saved[MAX_THREADS];
  State state[MAX_THREADS];
  void* operand[MAX_THREADS];
  unsigned mask[MAX_THREADS];
  Together work[MAX_THREADS];
  Copies copies[MAX_THREADS];
  unsigned ready[MAX_WARPS];
  unsigned size = 0, alive = 0, waiting = 0, running = 0;
  bool inside = false;
  void* scheduler = nullptr;
  const Launch* launch = nullptr;
  unsigned long long random = 0;
  std::size_t shared_of = 0;
  char* shared = nullptr;
  std::size_t shared_bytes = 0;
  char signal_stack[1 << 14];

  Worker() {
    const Address bytes = MAX_THREADS * STACK_BYTES;
    char* room = (char*)mmap(nullptr, bytes + STACK_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) fail("no memory for the stacks of threads");
    stacks = (char*)(((Address)room + STACK_BYTES - 1) & ~(STACK_BYTES - 1));
    for (unsigned t = 0; t < MAX_THREADS; ++t)
      if (mprotect(stacks + t * STACK_BYTES, 4096, PROT_NONE)) fail("no guards below the stacks of threads");
    stack_t alternative = {};
    alternative.ss_sp = signal_stack, alternative.ss_size = sizeof(signal_stack);
    sigaltstack(&alternative, nullptr);
  }
  Worker(const Worker&) = delete;
  ~Worker() {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(stacks, MAX_THREADS * STACK_BYTES);
  }

  Thread& thread(unsigned t) { return *(Thread*)(stacks + (t + 1) * STACK_BYTES - STATE_BYTES); }

  void start(unsigned t, void (*entry)()) {
    Address top = (Address)&thread(t) - t % COLOURS * COLOUR_BYTES;
    void** at = (void**)(top & ~(Address)63);
    *--at = nullptr;
    *--at = (void*)entry;
    at -= 6;
    std::memset(at, 0, 6 * sizeof(void*));
    saved[t] = at;
  }

  void make_ready(unsigned t) {
    state[t] = State::Ready;
    ++ready[t / WARP];
  }

  // Leaves the running thread until it is ready again.
  void rest(State in) {
    const unsigned t = running;
    state[t] = in;
    --ready[t / WARP];
    emulated_switch(&saved[t], scheduler);
  }

  void open_barrier() {
    waiting = 0;
    for (unsigned t = 0; t < size; ++t)
      if (state[t] == State::AtBarrier) make_ready(t);
  }

  // Completes the operation of the lanes of `which` in a warp, if all have come. The running thread counts as waiting.
  bool complete(unsigned warp, unsigned which) {
    const unsigned first = warp * WARP, end = std::min(size, first + WARP);
    unsigned lanes = 0;
    Together together = nullptr;
    for (unsigned t = first; t < end; ++t) {
      if (!(which >> (t - first) & 1) || state[t] == State::Done) continue;
      if (state[t] != State::InWarp || mask[t] != which) return false;
      if (together && work[t] != together) fail("lanes of a warp are in different operations with one mask");
      together = work[t];
      lanes |= 1u << (t - first);
    }
    if (lanes == 0) return false;
    together(operand + first, lanes);
    for (unsigned t = first; t < end; ++t)
      if (lanes >> (t - first) & 1) make_ready(t);
    return true;
  }

  void finish_thread() {
    const unsigned t = running, warp = t / WARP;
    state[t] = State::Done;
    --ready[warp];
    --alive;
    if (alive > 0 && waiting == alive) open_barrier();
    for (unsigned other = warp * WARP; other < std::min(size, (warp + 1) * WARP); ++other)
      if (state[other] == State::InWarp) complete(warp, mask[other]);
  }

  void run_block(const Launch& of, Dim3 block);
  void stuck();
};

Worker& worker() {
  static thread_local Worker mine;
  return mine;
}
thread_local Worker* in_kernel = nullptr;

void thread_entry() {
  Worker& w = *in_kernel;
  w.launch->kernel->call(w.launch->arguments);
  w.finish_thread();
  void* nowhere;
  emulated_switch(&nowhere, w.scheduler);
  __builtin_unreachable();
}

// The shared memory of a program: its thread-local segment, by the number that the loader has given it.
struct Segment {
  std::size_t id;
  std::size_t number;
  std::size_t bytes;
};
// The thread-local variable at an offset of a segment, in the memory of the calling thread (ELF's ABI). Makes that memory if
// the thread has none yet.
struct ThreadLocal {
  unsigned long number, offset;
};
extern "C" void* __tls_get_addr(ThreadLocal*);
int find_segment(dl_phdr_info* info, std::size_t, void* wanted) {
  Segment& segment = *(Segment*)wanted;
  if (info->dlpi_tls_modid == 0 || info->dlpi_addr != segment.id) return 0;
  segment.number = info->dlpi_tls_modid;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_TLS) segment.bytes = info->dlpi_phdr[i].p_memsz;
  return 1;
}

void Worker::run_block(const Launch& of, Dim3 block) {
  launch = &of;
  size = alive = of.block.x * of.block.y * of.block.z;
  waiting = 0;
  if (shared_of != of.module_id) {
    Segment segment = {of.module_id, 0, 0};
    dl_iterate_phdr(find_segment, &segment);
    if (segment.number == 0) fail("no shared memory");
    // The list of the loader has no address of the segment while another thread loads a program.
    ThreadLocal first = {segment.number, 0};
    shared_of = of.module_id, shared = (char*)__tls_get_addr(&first), shared_bytes = segment.bytes;
  }
  fill_fresh(shared, shared_bytes);
  const unsigned warps = (size + WARP - 1) / WARP;
  for (unsigned w = 0; w < warps; ++w) ready[w] = 0;
  for (unsigned t = 0; t < size; ++t) {
    const Dim3 b = of.block;
    thread(t) = {{t % b.x, t / b.x % b.y, t / b.x / b.y}, block, b, of.grid, t % WARP};
    copies[t].open.clear(), copies[t].groups.clear();
    make_ready(t);
    start(t, thread_entry);
  }
  in_kernel = this;
  while (alive > 0) {
    bool moved = false;
    const unsigned first = random_below(random, warps);
    for (unsigned v = 0; v < warps; ++v) {
      const unsigned w = (first + v) % warps, begin = w * WARP, lanes = std::min(size - begin, WARP);
      while (ready[w] > 0) {
        // Any odd step visits all lanes of a whole warp.
        const unsigned from = random_below(random, lanes), step = lanes == WARP ? random_below(random, 16) * 2 + 1 : 1;
        for (unsigned l = 0; l < lanes; ++l) {
          const unsigned t = begin + (from + l * step) % lanes;
          if (state[t] != State::Ready) continue;
          running = t;
          emulated_switch(&scheduler, saved[t]);
          moved = true;
        }
      }
    }
    if (!moved) stuck();
  }
  in_kernel = nullptr;
}

void Worker::stuck() {
  unsigned at_barrier = 0, in_warp = 0, done = 0;
  for (unsigned t = 0; t < size; ++t) {
    at_barrier += state[t] == State::AtBarrier;
    in_warp += state[t] == State::InWarp;
    done += state[t] == State::Done;
  }
  fail("the threads of a block wait for each other: %u at a barrier, %u in operations of their warps, %u have returned",
       at_barrier, in_warp, done);
}

void barrier() {
  Worker& w = *in_kernel;
  if (++w.waiting < w.alive) return w.rest(State::AtBarrier);
  w.open_barrier();
}

void together(unsigned mask, void* operand, Together work) {
  Worker& w = *in_kernel;
  const unsigned t = w.running;
  if (!(mask >> t % WARP & 1)) fail("a lane is not in the mask %#x of its operation", mask);
  w.operand[t] = operand, w.mask[t] = mask, w.work[t] = work;
  w.state[t] = State::InWarp;
  --w.ready[t / WARP];
  if (w.complete(t / WARP, mask)) return;
  ++w.ready[t / WARP];
  w.rest(State::InWarp);
}

void arrive(const Copy& copy) {
  if (copy.from)
    std::memcpy(copy.to, copy.from, copy.bytes);
  else
    std::memset(copy.to, 0, copy.bytes);
}
void copy_async(void* to, const void* from, unsigned bytes) {
  Worker& w = *in_kernel;
  if ((Address)to % bytes || (Address)from % bytes) fail("an asynchronous copy of %u bytes is not aligned", bytes);
  const Copy copy = {to, from, bytes};
  if (random_below(w.random, 4) == 0)
    arrive(copy);
  else
    w.copies[w.running].open.push_back(copy);
}
void commit_copies() {
  Copies& mine = in_kernel->copies[in_kernel->running];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
void wait_copies(unsigned groups) {
  Copies& mine = in_kernel->copies[in_kernel->running];
  while (mine.groups.size() > groups) {
    for (const Copy& copy : mine.groups.front()) arrive(copy);
    mine.groups.erase(mine.groups.begin());
  }
}
void fail_plainly(const char* why) { fail("%s", why); }

// Helpers beside the thread that launches.
struct Pool {
  std::mutex lock;
  std::condition_variable wake, idle;
  const Launch* launch = nullptr;
  unsigned long long round = 0;
  unsigned busy = 0;
  std::atomic<unsigned long long> next{0};
  unsigned helpers = 0;
  bool started = false;
};
// Never destroyed, as its threads run until the process ends.
Pool& pool() {
  static Pool& only = *new Pool;
  return only;
}

void take_blocks(const Launch& launch) {
  Worker& w = worker();
  const Dim3 grid = launch.grid;
  const unsigned long long all = (unsigned long long)grid.x * grid.y * grid.z;
  // A step without a common factor visits all blocks.
  unsigned long long step = all / 2 + 1 + setting("FMM_EMULATOR_SEED", 1) % 7;
  while (std::gcd(step, all) != 1) ++step;
  for (;;) {
    const unsigned long long i = pool().next.fetch_add(1, std::memory_order_relaxed);
    if (i >= all) break;
    const unsigned long long b = (unsigned long long)((unsigned __int128)i * step % all);
    w.random = (setting("FMM_EMULATOR_SEED", 1) + b) * 0x9e3779b97f4a7c15ull + 1;
    w.run_block(launch, {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)});
  }
}

void help() {
  Pool& p = pool();
  unsigned long long seen = 0;
  std::unique_lock<std::mutex> guard(p.lock);
  for (;;) {
    p.wake.wait(guard, [&] { return p.round != seen; });
    seen = p.round;
    const Launch* launch = p.launch;
    if (!launch) continue;
    ++p.busy;
    guard.unlock();
    take_blocks(*launch);
    guard.lock();
    if (--p.busy == 0) p.idle.notify_all();
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  // The process ends in any case: nothing to lose by printing here.
  if (in_kernel) fail("%s at the address %p", number == SIGILL ? "an index beyond an array" : "an access beyond memory", info->si_addr);
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

const Runtime RUNTIME = {barrier, together, copy_async, commit_copies, wait_copies, fail_plainly};

unsigned long long setting(const char* name, unsigned long long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void fail(const char* format, ...) {
  char message[1024];
  va_list list;
  va_start(list, format);
  std::vsnprintf(message, sizeof(message), format, list);
  va_end(list);
  char where[256] = "";
  if (const Worker* w = in_kernel) {
    const Thread& t = ((Worker*)w)->thread(w->running);
    std::snprintf(where, sizeof(where), " in %s, block (%u, %u, %u) of (%u, %u, %u), thread %u of %u", w->launch->name,
                  t.block.x, t.block.y, t.block.z, t.grid_size.x, t.grid_size.y, t.grid_size.z, w->running, w->size);
  }
  std::fprintf(stderr, "CUDA emulator%s: %s\n", where, message);
  std::fflush(nullptr);
  std::_Exit(134);
}

void fill_fresh(void* at, std::size_t bytes) {
  char* to = (char*)at;
  unsigned word = FRESH;
  std::size_t i = 0;
  for (; i + 4 <= bytes; i += 4) std::memcpy(to + i, &word, 4);
  for (; i < bytes; ++i) to[i] = (char)0xf7;
}

void run(const Launch& launch) {
  Pool& p = pool();
  static std::mutex one;
  std::lock_guard<std::mutex> guard(one);
  if (!p.started) {
    p.started = true;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGILL}) sigaction(number, &action, nullptr);
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    p.helpers = (unsigned)setting("FMM_EMULATOR_THREADS", cores) - 1;
    for (unsigned i = 0; i < p.helpers; ++i) std::thread(help).detach();
  }
  p.next = 0;
  const bool alone = p.helpers == 0 || (unsigned long long)launch.grid.x * launch.grid.y * launch.grid.z == 1;
  if (!alone) {
    std::lock_guard<std::mutex> hold(p.lock);
    p.launch = &launch;
    ++p.round;
    p.wake.notify_all();
  }
  take_blocks(launch);
  if (!alone) {
    std::unique_lock<std::mutex> hold(p.lock);
    p.launch = nullptr;
    p.idle.wait(hold, [&] { return p.busy == 0; });
  }
}

}  // namespace emulated
