#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lsv {
namespace {

constexpr int kSpinsBeforeYield = 4096;    // a barrier that lasts longer waits for a thread that lost its core
constexpr int64_t kSpinNanoseconds = 1'000'000;  // the pause between two regions that is bridged awake; waking takes a fifth of that

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

template <class Ready> void spin_until(Ready ready) {
  for (int spins = 0; !ready(); ++spins) {
    if (spins < kSpinsBeforeYield) relax();
    else sched_yield();
  }
}

struct alignas(64) Padded { std::atomic<uint32_t> value{0}; };

class Team {
 public:
  explicit Team(int size, const int32_t* cpus) : size(size), arrived_(new Padded[size]) {
    for (int rank = 1; rank < size; ++rank) {
      threads_.emplace_back([this, rank] { serve(rank); });
      if (cpus) pin(threads_.back(), cpus[rank - 1]);
    }
  }

  ~Team() {
    region_ = nullptr;
    start();
    for (std::thread& thread : threads_) thread.join();
  }

  const int size;

  void run(Region region, void* context) {
    region_ = region;
    context_ = context;
    start();
    Member me(0, size);
    region(me, context);
    barrier(0);
  }

  void barrier(int rank) {
    uint32_t phase = phase_.value.load(std::memory_order_relaxed) + 1;
    if (rank == 0) {
      for (int other = 1; other < size; ++other)
        spin_until([&] { return arrived_[other].value.load(std::memory_order_acquire) == phase; });
      claimed_.value.store(0, std::memory_order_relaxed);
      phase_.value.store(phase, std::memory_order_release);
    } else {
      arrived_[rank].value.store(phase, std::memory_order_release);
      spin_until([&] { return phase_.value.load(std::memory_order_acquire) == phase; });
    }
  }

  void wake() {
    if (parked_.value.load()) futex_wake_all(started_.value);
  }

  int64_t claim() { return claimed_.value.fetch_add(1, std::memory_order_relaxed); }

 private:
  void start() {
    started_.value.fetch_add(1);
    wake();
  }

  void serve(int rank) {
    for (uint32_t seen = 0;; ++seen) {
      await_start(seen);
      if (!region_) return;
      Member me(rank, size);
      region_(me, context_);
      barrier(rank);
    }
  }

  void await_start(uint32_t seen) {
    int64_t until = 0;
    while (started_.value.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < 64; ++i) {
        relax();
        if (started_.value.load(std::memory_order_acquire) != seen) return;
      }
      int64_t now = nanoseconds();
      if (!until) until = now + kSpinNanoseconds;
      if (now < until) continue;
      parked_.value.fetch_add(1);
      if (started_.value.load() == seen) futex_wait(started_.value, seen);
      parked_.value.fetch_sub(1);
      until = 0;
    }
  }

  static void pin(std::thread& thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);  // refused: it runs where the system likes
  }

  Region region_ = nullptr;
  void* context_ = nullptr;
  Padded started_, parked_, phase_, claimed_;
  std::unique_ptr<Padded[]> arrived_;
  std::vector<std::thread> threads_;
};

std::mutex turn;
// Never destroyed: at exit its threads may be parked, and the process ends them.
Team* team = new Team(1, nullptr);

}  // namespace

void Member::barrier() {
  if (size > 1) team->barrier(rank);
  else claimed_alone_ = 0;
}

int64_t Member::claim() { return size > 1 ? team->claim() : claimed_alone_++; }

void run(Region region, void* context) {
  std::lock_guard<std::mutex> lock(turn);
  if (team->size == 1) {
    Member alone(0, 1);
    return region(alone, context);
  }
  team->run(region, context);
}

int team_size() { return team->size; }

}  // namespace lsv

extern "C" void lsv_set_team(int threads, const int32_t* cpus) {
  std::lock_guard<std::mutex> lock(lsv::turn);
  if (threads == lsv::team->size && !cpus) return;
  delete lsv::team;
  lsv::team = new lsv::Team(threads, cpus);
}

extern "C" void lsv_wake_team() { lsv::team->wake(); }

extern "C" int lsv_team_size() { return lsv::team_size(); }
