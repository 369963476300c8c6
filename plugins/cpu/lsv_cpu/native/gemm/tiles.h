// The tile instructions of AMX. Kernels use tiles 0-3 as sums, 4-5 for rows and 6-7 for weights: tiles 0, 1 and 4 have
// the rows of one block, tiles 2, 3 and 5 those of another.
//
// Inline assembly and not the compiler's intrinsics: those of gcc 12 do not say that loading tiles or their
// configuration reads memory, so that what was stored there before may still be on its way or be dropped.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(LSV_EMULATE_AMX)
#include "emulated/bfloat16.h"
#include "vector.h"
#endif

namespace lsv {
namespace tiles {

constexpr int kRows = 16;       // of a tile at most
constexpr int kLineBytes = 64;  // of a row of a tile at most

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t line_bytes[16] = {};
  uint8_t rows[16] = {};

  // Blocks of `rows0` and `rows1` rows, each line of theirs `bytes` long.
  Configuration(int rows0, int rows1, int bytes) {
    for (int tile : {0, 1, 4}) set(tile, rows0, kLineBytes);
    for (int tile : {2, 3, 5}) set(tile, rows1, kLineBytes);
    for (int tile : {4, 5}) line_bytes[tile] = (uint16_t)bytes;
    for (int tile : {6, 7}) set(tile, bytes / 4, kLineBytes);
  }

 private:
  void set(int tile, int count, int bytes) {
    rows[tile] = (uint8_t)count;
    line_bytes[tile] = (uint16_t)bytes;
  }
};

#if !defined(LSV_EMULATE_AMX)

inline void configure(const Configuration& configuration) {
  asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
}
inline void release() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile> inline void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(kTile)); }
template <int kTile> inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
// The same past the first-level cache, for what is read once while something else should stay there.
template <int kTile> inline void load_past(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile> inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

// Keeps the 512-bit vector unit awake. It sleeps about 2,200 cycles after its last arithmetic, and a tile store then
// waits 1,000 cycles for it: every loop of products has one of these for each tile of the right operand.
inline void stay_awake() { asm volatile("vaddps %%zmm31, %%zmm31, %%zmm31" ::: "xmm31"); }

// sums += rows * weights
template <int kSums, int kLeft, int kRight> inline void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}
template <int kSums, int kLeft, int kRight> inline void multiply_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}

#else

// The same in plain vectors, for tests on machines without tiles: every result has the bits the instruction gives
// (operation sections of the Intel 64 and IA-32 Software Developer's Manual), and what would fault traps.
struct State {
  struct Tile { alignas(64) uint8_t lines[kRows][kLineBytes]; };
  Tile tiles[8];
  int rows[8], line_bytes[8];
  bool configured = false;
};

inline thread_local State state;

constexpr int kHalf = kLineBytes / 2;  // of a line, in a register of AVX2

inline void demand(bool legal) {
  if (!legal) __builtin_trap();
}

inline void configure(const Configuration& configuration) {
  demand(configuration.palette == 1 && configuration.start_row == 0);
  std::memset(state.tiles, 0, sizeof state.tiles);
  for (int i = 0; i < 8; ++i) {
    state.rows[i] = configuration.rows[i];
    state.line_bytes[i] = configuration.line_bytes[i];
    demand(state.rows[i] <= kRows && state.line_bytes[i] <= kLineBytes && state.line_bytes[i] % 4 == 0);
    demand((state.rows[i] == 0) == (state.line_bytes[i] == 0));
  }
  state.configured = true;
}
inline void release() { state.configured = false; }

template <int kTile> State::Tile& tile() {
  demand(state.configured && state.rows[kTile]);
  return state.tiles[kTile];
}

template <int kTile> inline void zero() { std::memset(&tile<kTile>(), 0, sizeof(State::Tile)); }

template <int kTile> inline void load(const void* from, int64_t stride) {
  State::Tile& to = tile<kTile>();
  zero<kTile>();
  for (int i = 0; i < state.rows[kTile]; ++i)
    std::memcpy(to.lines[i], (const char*)from + i * stride, state.line_bytes[kTile]);
}

template <int kTile> inline void load_past(const void* from, int64_t stride) { load<kTile>(from, stride); }
inline void stay_awake() {}

template <int kTile> inline void store(void* to, int64_t stride) {
  const State::Tile& from = tile<kTile>();
  for (int i = 0; i < state.rows[kTile]; ++i)
    std::memcpy((char*)to + i * stride, from.lines[i], state.line_bytes[kTile]);
}

template <int kSums, int kLeft, int kRight> void demand_shapes() {
  demand(kSums != kLeft && kLeft != kRight && kRight != kSums);
  demand(state.rows[kSums] == state.rows[kLeft] && state.line_bytes[kSums] == state.line_bytes[kRight]);
  demand(state.line_bytes[kLeft] == 4 * state.rows[kRight]);
}

inline __m256i repeat(const uint8_t* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// The first members of the pairs and the second ones are summed apart, then added to each other, then to the sums. Every
// step rounds to the nearest even number. Not inline: no arithmetic may leave the caller's scope without denormals.
[[gnu::noinline]] inline void add_products_bf16(State::Tile& sums, const State::Tile& left, const State::Tile& right,
                                                int rows, int pairs) {
  using namespace emulated;
  for (int column = 0; column < kLineBytes; column += kHalf) {
    __m256 even_weights[kRows], odd_weights[kRows];
    for (int i = 0; i < pairs; ++i) {
      const __m256i weights = _mm256_load_si256((const __m256i*)(right.lines[i] + column));
      even_weights[i] = even(weights);
      odd_weights[i] = odd(weights);
    }
    for (int row = 0; row < rows; ++row) {
      __m256 first = _mm256_setzero_ps(), second = first;
      for (int i = 0; i < pairs; ++i) {
        const __m256i pair = repeat(left.lines[row] + 4 * i);
        first = _mm256_fmadd_ps(even(pair), even_weights[i], first);
        second = _mm256_fmadd_ps(odd(pair), odd_weights[i], second);
      }
      float* sum = (float*)(sums.lines[row] + column);
      _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), _mm256_add_ps(first, second)));
    }
  }
}

template <int kSums, int kLeft, int kRight> void multiply_bf16() {
  demand_shapes<kSums, kLeft, kRight>();
  const emulated::WithoutDenormals scope;
  add_products_bf16(tile<kSums>(), tile<kLeft>(), tile<kRight>(), state.rows[kSums], state.rows[kRight]);
}

// Of each pair of bytes the first or the second, in 16 bits.
inline __m256i first_bytes(__m256i pairs) { return _mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8); }
inline __m256i second_bytes(__m256i pairs) { return _mm256_srai_epi16(pairs, 8); }

template <int kSums, int kLeft, int kRight> void multiply_int8() {
  demand_shapes<kSums, kLeft, kRight>();
  State::Tile &sums = tile<kSums>(), &left = tile<kLeft>(), &right = tile<kRight>();
  const int rows = state.rows[kSums], fours = state.rows[kRight];
  for (int column = 0; column < kLineBytes; column += kHalf) {
    __m256i first_weights[kRows], second_weights[kRows];
    for (int i = 0; i < fours; ++i) {
      const __m256i weights = _mm256_load_si256((const __m256i*)(right.lines[i] + column));
      first_weights[i] = first_bytes(weights);
      second_weights[i] = second_bytes(weights);
    }
    for (int row = 0; row < rows; ++row) {
      __m256i* place = (__m256i*)(sums.lines[row] + column);
      __m256i sum = _mm256_load_si256(place);
      for (int i = 0; i < fours; ++i) {
        const __m256i four = repeat(left.lines[row] + 4 * i);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(first_bytes(four), first_weights[i]));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(second_bytes(four), second_weights[i]));
      }
      _mm256_store_si256(place, sum);
    }
  }
}

#endif

// The shapes that a thread's tiles have while it works on some region; it gives the tiles back at the end.
class Shapes {
 public:
  Shapes() = default;
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;
  ~Shapes() {
    if (rows0_) release();
  }

  // Blocks of `rows0` and `rows1` rows, each line of theirs `bytes` long: always the same length.
  void set(int rows0, int rows1, int bytes) {
    if (rows0 == rows0_ && rows1 == rows1_) return;
    configure({rows0, rows1, bytes});
    rows0_ = rows0;
    rows1_ = rows1;
  }

  // Blocks of the first 16 of `count` rows and of the others; of the first ones twice where there are no others.
  void set_pair(int count, int bytes) {
    const int rows = count < kRows ? count : kRows;
    set(rows, count > kRows ? count - kRows : rows, bytes);
  }

 private:
  int rows0_ = 0, rows1_ = 0;
};

}  // namespace tiles
}  // namespace lsv
