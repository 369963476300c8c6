// Working memory that a thread's calls share: it grows to the largest call and stays, on huge pages where they are to be had.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lsv {

// Bytes for the time of one call, aligned to 64; calls on the same thread must not nest.
struct Scratch {
  explicit Scratch(int64_t bytes);
  char* data;
};

}  // namespace lsv
