#include "ranks.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstring>

#include "gemm/epilogue.h"
#include "vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lsv {
namespace {

constexpr int kSpins = 1 << 14, kYields = 1 << 10;  // then a rank is not late but busy, and the core is left to others
constexpr int64_t kNap = 50'000;                    // nanoseconds

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void pause(int turn) {
#if defined(__x86_64__)
  if (turn < kSpins) return _mm_pause();
#endif
  if (turn < kSpins + kYields) {
    sched_yield();
    return;
  }
  timespec nap = {0, kNap};
  nanosleep(&nap, nullptr);
}

std::atomic<int64_t>& arrivals(const Ranks& ranks, int rank) {
  static_assert(std::atomic<int64_t>::is_always_lock_free, "ranks are processes");
  return *(std::atomic<int64_t>*)(ranks.memory + 64 * (int64_t)rank);
}

// Waits for all ranks. What any of them wrote before, all of them see after.
void meet(Ranks& ranks) {
  int64_t number = ++ranks.meetings;
  arrivals(ranks, ranks.rank).store(number, std::memory_order_release);
  double until = 0;
  for (int rank = 0; rank < ranks.size; ++rank)
    for (int turn = 0; !ranks.missing && arrivals(ranks, rank).load(std::memory_order_acquire) < number; ++turn) {
      pause(turn);
      if (turn < kSpins + kYields) continue;
      if (!until) until = seconds() + ranks.patience;
      if (seconds() > until) ranks.missing = rank + 1;
    }
}

// The ranks' places at their next meeting. They are there twice: who is at the meeting after it has read those before.
char* places(const Ranks& ranks) {
  return ranks.memory + lines_bytes(ranks) + (ranks.meetings & 1) * ranks.size * ranks.capacity;
}

// Everybody's part of a chunk, bytes of `x`, at the places that are the answer.
const char* exchange(Member& me, Ranks& ranks, const char* x, int64_t bytes) {
  char* all = places(ranks);
  Range mine = me.share(bytes, 64);
  if (mine.begin < mine.end) std::memcpy(all + ranks.rank * ranks.capacity + mine.begin, x + mine.begin, mine.end - mine.begin);
  me.barrier();
  if (me.rank == 0) meet(ranks);
  me.barrier();
  return all;
}

template <class T> Floats bias_at(const T* bias, int64_t column, int64_t width, int n) {
  if (column + n <= width) return load_up_to(bias + column, n);
  Floats found = {};
  for (int lane = 0; lane < n; ++lane) found[lane] = to_float(bias[(column + lane) % width]);
  return found;
}

template <class T>
void sum_as(Member& me, Ranks& ranks, const T* x, int64_t count, const T* bias, int64_t width, const T* residual, T* out) {
  int64_t most = ranks.capacity / (int64_t)sizeof(T);
  for (int64_t first = 0; first < count; first += most) {
    int64_t size = count - first < most ? count - first : most;
    const char* all = exchange(me, ranks, (const char*)(x + first), size * (int64_t)sizeof(T));
    Range mine = me.share(size, kLanes);
    for (int64_t at = mine.begin; at < mine.end; at += kLanes) {
      int n = (int)(mine.end - at < kLanes ? mine.end - at : kLanes);
      Floats total = load_up_to((const T*)all + at, n);
      for (int rank = 1; rank < ranks.size; ++rank) total += load_up_to((const T*)(all + rank * ranks.capacity) + at, n);
      if (bias) total += bias_at(bias, (first + at) % width, width, n);
      if (residual) total += load_up_to(residual + first + at, n);
      store_up_to(out + first + at, total, n);
    }
  }
}

}  // namespace

void sum_ranks(Member& me, Ranks& ranks, int32_t dtype, const void* x, int64_t count, const void* bias, int64_t width,
               const void* residual, void* out) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    sum_as(me, ranks, (const T*)x, count, (const T*)bias, width, (const T*)residual, (T*)out);
  });
}

}  // namespace lsv

using namespace lsv;

extern "C" {

// x [count] of every rank -> their sum.
int lsv_sum_ranks(Ranks* ranks, int dtype, const void* x, int64_t count, void* out) {
  return status_of([&] {
    run_if_worth(count, [&](Member& me) { sum_ranks(me, *ranks, dtype, x, count, nullptr, 1, nullptr, out); });
  });
}

// x, of as many bytes at every rank -> [ranks][bytes].
int lsv_gather_ranks(Ranks* ranks, const void* x, int64_t bytes, void* out) {
  return status_of([&] {
    run_if_worth(bytes / 4, [&](Member& me) {
      for (int64_t first = 0; first < bytes; first += ranks->capacity) {
        int64_t size = bytes - first < ranks->capacity ? bytes - first : ranks->capacity;
        const char* all = exchange(me, *ranks, (const char*)x + first, size);
        Range mine = me.share(size, 64);
        for (int rank = 0; rank < ranks->size; ++rank)
          if (mine.begin < mine.end)
            std::memcpy((char*)out + rank * bytes + first + mine.begin, all + rank * ranks->capacity + mine.begin,
                        mine.end - mine.begin);
      }
    });
  });
}

}
