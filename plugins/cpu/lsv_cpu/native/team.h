// The thread team: every kernel runs as one region in which all members execute the same code, parted by barriers.
// Members spin between regions for a moment, so that the next call finds them awake, and then park.
#pragma once

#include <cstdint>
#include <new>
#include <system_error>
#include <type_traits>

namespace lsv {

struct Range { int64_t begin, end; };

// A thread's view of the region it is in. All members must meet the same barriers in the same order.
class Member {
 public:
  // With `spare` it is a member of a part of its own, such as one that works alone while others do something else: it
  // brings the working memory that a team's members have by rank, and may not wait for anybody.
  Member(int rank, int size, char* spare = nullptr) : rank(rank), size(size), spare(spare) {}

  const int rank, size;
  char* const spare;

  // Waits for all members. What any of them wrote before, all of them see after. Also resets `claim`.
  void barrier();

  // The next number nobody has claimed since the last barrier, counted from 0: for loops whose parts differ in cost.
  int64_t claim();

  // This member's part of 0..n in equal shares, cut at multiples of `unit`.
  Range share(int64_t n, int64_t unit = 1) const {
    int64_t units = (n + unit - 1) / unit;
    int64_t begin = units * rank / size * unit, end = units * (rank + 1) / size * unit;
    return {begin < n ? begin : n, end < n ? end : n};
  }

 private:
  int64_t claimed_alone_ = 0;  // what `claim` has given where nobody else is in the region
};

using Region = void (*)(Member&, void* context);

// What less takes than waking up others, in units of about a nanosecond.
constexpr int64_t kLeastWork = 2000;

// A caller's turn with the team, while which other callers wait and the team stays as it is: so its size is known before
// a region begins, and working memory can be had for each member. A region must not take another turn.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;

  int members() const;

  // Runs `region` on all members and returns when they are done; the calling thread is member 0.
  template <class F> void run(F&& region) {
    run([](Member& me, void* context) { (*static_cast<std::remove_reference_t<F>*>(context))(me); }, &region);
  }

  // The same with as many members as the work deserves.
  template <class F> void run_if_worth(int64_t work, F&& region) {
    if (work >= kLeastWork) return run(region);
    Member alone(0, 1);
    region(alone);
  }

 private:
  void run(Region region, void* context);
};

// Regions that need no working memory.
template <class F> void run(F&& region) { Turn().run(region); }

template <class F> void run_if_worth(int64_t work, F&& region) {
  if (work >= kLeastWork) return run(region);
  Member alone(0, 1);
  region(alone);
}

// What a function answers that needs memory or threads, which the system may refuse, or was asked for what is not there:
// C has no exceptions.
enum Status { kDone = 0, kNoMemory = 1, kNoThreads = 2, kNoSuchExpert = 3 };

template <class F> int status_of(F&& work) noexcept {
  try {
    work();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::system_error&) {
    return kNoThreads;
  }
}

}  // namespace lsv

extern "C" {
// Makes the team `threads` strong. cpus: for each member but the caller the logical CPU it is pinned to, or null. The
// team stays as it was where this is not kDone.
int lsv_set_team(int threads, const int32_t* cpus);
// Lets parked members wake up while the caller still prepares the next region.
void lsv_wake_team();
int lsv_team_size();
}
