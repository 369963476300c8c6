// A vector of codes -> the weights of its outputs, as pairs of inputs in bfloat16: kSteps vectors of them. kQuick: that
// takes no longer than storing and loading them.
#pragma once

#include "permute.h"
#include "vector.h"

namespace lsv {
namespace coded {

inline bool is_nan(uint16_t bfloat16) { return (bfloat16 & 0x7fff) > 0x7f80; }

// What has been decoded before.
struct Decoded {
  static constexpr int kSteps = 1;
  explicit Decoded(const void*) {}
  void decode(Words pairs, Words* to) const { to[0] = pairs; }
};

#if defined(__AVX512F__)
struct Nibbles {
  static constexpr int kSteps = 4;
  static constexpr bool kQuick = true;
  // The 16 values twice: the fifth bit of a place is that of another code.
  explicit Nibbles(const void* table) : table_(_mm512_broadcast_i64x4(load_as<__m256i>((const char*)table))) {}
  void decode(Words codes, Words* to) const {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i)
      to[i] = (Words)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)codes, 4 * i), table_);
  }

 private:
  __m512i table_;
};

// Eight vectors of 32 values.
struct Bytes {
  static constexpr int kSteps = 2;
  static constexpr bool kQuick = false;
  explicit Bytes(const void* table) {
    for (int i = 0; i < 8; ++i) table_[i] = load_as<__m512i>((const char*)table + i * sizeof(__m512i));
  }
  void decode(Words codes, Words* to) const {
    const __m512i zeros = _mm512_setzero_si512();
    to[0] = (Words)look_up(_mm512_unpacklo_epi8((__m512i)codes, zeros));
    to[1] = (Words)look_up(_mm512_unpackhi_epi8((__m512i)codes, zeros));
  }

 private:
  __m512i look_up(__m512i codes) const {
    const __mmask32 upper_half = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(128));
    const __mmask32 odd_quarter = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64));
    __m512i found[4];
    for (int i = 0; i < 4; ++i) found[i] = _mm512_permutex2var_epi16(table_[2 * i], codes, table_[2 * i + 1]);
    const __m512i low = _mm512_mask_blend_epi16(odd_quarter, found[0], found[1]);
    return _mm512_mask_blend_epi16(upper_half, low, _mm512_mask_blend_epi16(odd_quarter, found[2], found[3]));
  }

  __m512i table_[8];
};

// Where permutes_bytes(): four vectors with the low bytes of 64 values each, and four with the high ones.
struct QuickBytes {
  static constexpr int kSteps = 2;
  static constexpr bool kQuick = false;
  explicit QuickBytes(const void* table) {
    for (int i = 0; i < 4; ++i) {
      const char* values = (const char*)table + 2 * i * sizeof(__m512i);
      __m512i first = load_as<__m512i>(values), second = load_as<__m512i>(values + sizeof(__m512i));
      low_[i] = pack(first, second);
      high_[i] = pack(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    }
  }
  void decode(Words words, Words* to) const {
    const __m512i codes = (__m512i)words;
    const __mmask64 upper_half = _mm512_movepi8_mask(codes);
    auto choose = [&](const __m512i* bytes) {
      const __m512i low = permute_bytes(codes, bytes[0], bytes[1]), high = permute_bytes(codes, bytes[2], bytes[3]);
      return _mm512_mask_blend_epi8(upper_half, low, high);
    };
    part(choose(low_), choose(high_), to);
  }

 protected:
  // Low and high bytes of values, in the order of the codes.
  static void part(__m512i low, __m512i high, Words* to) {
    to[0] = (Words)_mm512_unpacklo_epi8(low, high);
    to[1] = (Words)_mm512_unpackhi_epi8(low, high);
  }
  static __m512i pack(__m512i first, __m512i second) {  // the low bytes of words
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(first)), _mm512_cvtepi16_epi8(second), 1);
  }

  __m512i low_[4], high_[4];
};

// The same where the highest bit of a code is a sign: half of the values will do.
struct SignedBytes : QuickBytes {
  static constexpr bool kQuick = true;
  using QuickBytes::QuickBytes;
  static bool takes(const uint16_t* table) {
    bool mirrored = true;
    for (int i = 0; i < 128; ++i)
      mirrored &= table[i + 128] == (table[i] ^ 0x8000) || (is_nan(table[i]) && is_nan(table[i + 128]));
    return mirrored;
  }
  void decode(Words words, Words* to) const {
    constexpr int kFirstXorBoth = 0x78;  // a ^ (b & c)
    const __m512i codes = (__m512i)words, high = permute_bytes(codes, high_[0], high_[1]);
    part(permute_bytes(codes, low_[0], low_[1]),
         _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), kFirstXorBoth), to);
  }
};

#else

struct Nibbles {
  static constexpr int kSteps = 4;
  static constexpr bool kQuick = false;
#if defined(__AVX2__)
  explicit Nibbles(const void* table) {
    const __m128i first = load_as<__m128i>((const char*)table), second = load_as<__m128i>((const char*)table + 16);
    const __m128i mask = _mm_set1_epi16(255);
    low_ = _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm_and_si128(first, mask), _mm_and_si128(second, mask)));
    high_ = _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8)));
  }
  // A byte whose place has the highest bit set is zero.
  void decode(Words codes, Words* to) const {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      const __m256i places = _mm256_and_si256(_mm256_srli_epi16((__m256i)codes, 4 * i), _mm256_set1_epi16(15));
      const __m256i low = _mm256_shuffle_epi8(low_, _mm256_or_si256(places, _mm256_set1_epi16((short)0x8000)));
      const __m256i high = _mm256_or_si256(_mm256_slli_epi16(places, 8), _mm256_set1_epi16(0x80));
      to[i] = (Words)_mm256_or_si256(low, _mm256_shuffle_epi8(high_, high));
    }
  }

 private:
  __m256i low_, high_;
#else
  explicit Nibbles(const void* table) { std::memcpy(table_, table, sizeof table_); }
  void decode(Words codes, Words* to) const {
    for (int i = 0; i < kSteps; ++i)
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t places = codes[lane] >> 4 * i;
        to[i][lane] = table_[places & 15] | (uint32_t)table_[places >> 16 & 15] << 16;
      }
  }

 private:
  uint16_t table_[16];
#endif
};

struct Bytes {
  static constexpr int kSteps = 2;
  static constexpr bool kQuick = false;
  explicit Bytes(const void* table) : table_((const uint16_t*)table) {}
  void decode(Words codes, Words* to) const {
    uint16_t places[2 * kLanes], pairs[kSteps][2 * kLanes];
    store_as(places, codes);
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < kSteps; ++i) {
        uint16_t both = places[lane / 4 * 8 + i * 4 + lane % 4];
        pairs[i][2 * lane] = table_[both & 255];
        pairs[i][2 * lane + 1] = table_[both >> 8];
      }
    for (int i = 0; i < kSteps; ++i) to[i] = load_as<Words>(pairs[i]);
  }

 private:
  const uint16_t* table_;
};

#if defined(__AVX2__)
// A table of all bytes, in bfloat16.
struct ByteValues {
  template <class F> explicit ByteValues(F&& value) {
    for (int i = 0; i < 256; ++i) values[i] = value(i);
  }
  // Whether another table has the same numbers. NaNs are alike.
  bool same(const uint16_t* others) const {
    bool all = true;
    for (int i = 0; i < 256; ++i) all &= (values[i] == others[i]) | (is_nan(values[i]) & is_nan(others[i]));
    return all;
  }
  uint16_t values[256];
};

// The high half of a float: the number itself where that has 8 significant bits at most.
inline uint16_t high_half(float value) { return (uint16_t)(load_as<uint32_t>(&value) >> 16); }

// Codes that are numbers of e4m3, by arithmetic on bytes.
struct SmallFloats {
  static constexpr int kSteps = 2;
  static constexpr bool kQuick = false;
  static bool takes(const uint16_t* table) {
    static const ByteValues values(value);
    return values.same(table);
  }

  // The bytes of numbers below the normal, less what shifting their bits gives.
  explicit SmallFloats(const void*) {
    uint8_t low[16] = {}, high[16] = {};
    for (int i = 0; i < 8; ++i) {
      low[8 + i] = (uint8_t)(value(i) - shifted(i));
      high[8 + i] = (uint8_t)((value(i) >> 8) - (shifted(i) >> 8));
    }
    low_ = _mm256_broadcastsi128_si256(load_as<__m128i>(low));
    high_ = _mm256_broadcastsi128_si256(load_as<__m128i>(high));
  }
  void decode(Words words, Words* to) const {
    const __m256i codes = (__m256i)words, size = codes & _mm256_set1_epi8(kSize);
    const __m256i small = _mm256_adds_epu8(size, _mm256_set1_epi8(0x78));  // a place of a table, or past it
    const __m256i nans = _mm256_cmpeq_epi8(size, _mm256_set1_epi8(kSize)) & _mm256_set1_epi8(kSize);
    __m256i low = _mm256_slli_epi16(codes, 4) & _mm256_set1_epi8((char)0xf0);
    __m256i high = _mm256_srli_epi16(size, 4) & _mm256_set1_epi8(0x0f);
    low = _mm256_add_epi8(low, _mm256_shuffle_epi8(low_, small));
    high = _mm256_add_epi8(_mm256_add_epi8(high, _mm256_set1_epi8(kBias)), _mm256_shuffle_epi8(high_, small));
    high |= nans | (codes & _mm256_set1_epi8((char)0x80));
    to[0] = (Words)_mm256_unpacklo_epi8(low, high);
    to[1] = (Words)_mm256_unpackhi_epi8(low, high);
  }

 private:
  static constexpr char kSize = 0x7f;  // a code without its sign
  static constexpr int kBias = 0x3c;   // of the exponent, in a value's high byte
  static uint16_t shifted(int size) { return (uint16_t)((size << 4) + (kBias << 8)); }
  static uint16_t value(int code) {
    const int size = code & kSize, sign = (code & 0x80) << 8;
    if (size == kSize) return high_half(std::numeric_limits<float>::quiet_NaN());
    return (uint16_t)(sign | (size < 8 ? high_half(size * 0x1p-9f) : shifted(size)));
  }

  __m256i low_, high_;
};

// Codes that are whole numbers, with their highest bit flipped or as it is.
struct SmallIntegers {
  static constexpr int kSteps = 2;
  static constexpr bool kQuick = false;
  static bool takes(const uint16_t* table) {
    static const ByteValues as_they_are([](int code) { return high_half((int8_t)code); });
    static const ByteValues flipped([](int code) { return high_half((int8_t)(code ^ 0x80)); });
    return (flip(table) ? flipped : as_they_are).same(table);
  }

  explicit SmallIntegers(const void* table) : flip_(_mm256_set1_epi8((char)flip((const uint16_t*)table))) {}
  void decode(Words codes, Words* to) const {
    const __m256i numbers = (__m256i)codes ^ flip_, zeros = _mm256_setzero_si256();
    to[0] = to_floats(_mm256_unpacklo_epi8(zeros, numbers));
    to[1] = to_floats(_mm256_unpackhi_epi8(zeros, numbers));
  }

 private:
  static int flip(const uint16_t* table) { return table[0] ? 0x80 : 0; }
  // Pairs of numbers in high bytes; as floats these have zeros where the other of a pair goes.
  static Words to_floats(__m256i pairs) {
    const __m256i odd = _mm256_srai_epi32(pairs, 24), even = _mm256_srai_epi32(_mm256_slli_epi32(pairs, 16), 24);
    return (Words)_mm256_cvtepi32_ps(odd) | (Words)_mm256_cvtepi32_ps(even) >> 16;
  }

  __m256i flip_;
};
#endif
#endif

}  // namespace coded
}  // namespace lsv
