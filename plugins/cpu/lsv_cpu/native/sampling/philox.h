// Random numbers as a pure function of (seed, position, stream): Philox4x32-10, as in lsv_runtime/nn/philox.py.
#pragma once

#include <cstdint>

namespace lsv {

// A 32-bit fraction: the first word of the generator's output for this key and counter.
inline uint32_t uniform(uint64_t seed, uint64_t position, uint32_t stream) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = stream, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    uint64_t first = (uint64_t)0xD2511F53 * c0, second = (uint64_t)0xCD9E8D57 * c2;
    c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)second;
    c3 = (uint32_t)first;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c0;
}

}  // namespace lsv
