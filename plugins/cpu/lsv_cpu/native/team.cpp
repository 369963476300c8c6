#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
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
  // `cpus` is empty or has one for each member but the caller. Throws where the system refuses a thread.
  Team(int size, std::vector<int32_t> cpus) : size(size), cpus(std::move(cpus)), arrived_(new Padded[size]) {
    try {
      for (int rank = 1; rank < size; ++rank) {
        threads_.emplace_back([this, rank] { serve(rank); });
        if (!this->cpus.empty()) pin(threads_.back(), this->cpus[rank - 1]);
      }
    } catch (...) {
      end();
      throw;
    }
  }

  ~Team() { end(); }

  const int size;
  const std::vector<int32_t> cpus;

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

  void end() {
    region_ = nullptr;
    start();
    for (std::thread& thread : threads_) thread.join();
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

std::mutex turn;  // whoever holds it may use or change what follows
// Never destroyed: at exit its threads may be parked, and the process ends them.
Team* team = new Team(1, {});
bool forked = false;  // the team's threads are not in this process, but in its parent

// A fork waits for its turn, so that the child finds no region half done; the child then has it, and gives it back.
const int at_fork = pthread_atfork(
    [] { turn.lock(); }, [] { turn.unlock(); },
    [] {
      forked = true;
      turn.unlock();
    });

// A forked process gets its own threads when it first needs them; the parent's team is left as it is.
void replace_lost_team() {
  forked = false;
  Team* lost = team;
  team = new Team(1, {});
  try {
    team = new Team(lost->size, lost->cpus);
  } catch (const std::system_error&) {
    std::fprintf(stderr, "lsv: the system refuses threads to a forked process: its native kernels run on one\n");
  }
}

}  // namespace

void Member::barrier() {
  if (size > 1) team->barrier(rank);
  else claimed_alone_ = 0;
}

int64_t Member::claim() { return size > 1 ? team->claim() : claimed_alone_++; }

Turn::Turn() {
  turn.lock();
  if (forked) replace_lost_team();
}

Turn::~Turn() { turn.unlock(); }

int Turn::members() const { return team->size; }

void Turn::run(Region region, void* context) {
  if (team->size > 1) return team->run(region, context);
  Member alone(0, 1);
  region(alone, context);
}

}  // namespace lsv

using namespace lsv;

extern "C" int lsv_set_team(int threads, const int32_t* cpus) {
  return status_of([&] {
    std::vector<int32_t> places(cpus, cpus ? cpus + threads - 1 : cpus);
    Turn mine;
    if (threads == team->size && places == team->cpus) return;
    Team* larger = new Team(threads, std::move(places));
    delete team;
    team = larger;
  });
}

// While somebody else has the turn, the members are awake.
extern "C" void lsv_wake_team() {
  std::unique_lock<std::mutex> lock(turn, std::try_to_lock);
  if (lock && !forked) team->wake();
}

extern "C" int lsv_team_size() { return Turn().members(); }
