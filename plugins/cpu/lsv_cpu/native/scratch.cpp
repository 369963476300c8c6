#include "scratch.h"

#include <sys/mman.h>

#include <new>

namespace lsv {
namespace {

constexpr int64_t kHugePage = 2 << 20;

struct Arena {
  char* data = nullptr;
  int64_t bytes = 0;
  void* mapped = nullptr;

  ~Arena() { release(); }

  void release() {
    if (mapped) munmap(mapped, bytes + kHugePage);
    mapped = nullptr;
    data = nullptr;
  }

  char* at_least(int64_t wanted) {
    if (wanted <= bytes) return data;
    release();
    bytes = (wanted + kHugePage - 1) / kHugePage * kHugePage;
    void* place = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) {
      bytes = 0;
      throw std::bad_alloc();
    }
    mapped = place;
    data = (char*)(((uintptr_t)place + kHugePage - 1) / kHugePage * kHugePage);
    madvise(data, bytes, MADV_HUGEPAGE);  // a system without huge pages refuses, and nothing is lost
    return data;
  }
};

thread_local Arena arena;

}  // namespace

Scratch::Scratch(int64_t bytes) : data(arena.at_least(bytes)) {}

}  // namespace lsv
