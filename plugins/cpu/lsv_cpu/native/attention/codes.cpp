#include "attention/codes.h"

#include <algorithm>
#include <array>

#include "permute.h"

namespace lsv {
namespace {

constexpr int kCodes = 128;  // without the sign
constexpr uint16_t kNan = 0x7fc0, kInfinity = 0x7f80;

// A small float: `mantissa` bits behind an exponent with this bias.
struct SmallFloat {
  int mantissa, bias;
  int largest;     // code of the largest number
  int infinity;    // its code, or that of the first NaN
  bool infinities;
};
constexpr SmallFloat kE4M3Float = {3, 7, 0x7e, 0x7f, false}, kE5M2Float = {2, 15, 0x7b, 0x7c, true};

constexpr uint16_t bfloat16_of_whole(int n, int exponent) {  // n * 2^exponent, n < 256
  if (!n) return 0;
  int top = 7;
  while (!(n >> top)) --top;
  return (uint16_t)((127 + top + exponent) << 7 | (n << (7 - top) & 0x7f));
}

constexpr uint16_t bfloat16_of(const SmallFloat& form, int code) {
  if (code >= form.infinity) return form.infinities && code == form.infinity ? kInfinity : kNan;
  int exponent = code >> form.mantissa, fraction = code & ((1 << form.mantissa) - 1);
  int whole = exponent ? fraction + (1 << form.mantissa) : fraction;
  return bfloat16_of_whole(whole, std::max(exponent, 1) - form.bias - form.mantissa);
}

// What the codes stand for, as the two bytes of a bfloat16.
struct Table {
  std::array<uint8_t, kCodes> low{}, high{};

  constexpr explicit Table(int form) {
    for (int code = 0; code < kCodes; ++code) {
      uint16_t bits = form == kScaledInt8   ? bfloat16_of_whole(code, 0)
                      : form == kE4M3 ? bfloat16_of(kE4M3Float, code)
                                      : bfloat16_of(kE5M2Float, code);
      low[code] = (uint8_t)bits;
      high[code] = (uint8_t)(bits >> 8);
    }
  }
};
constexpr Table kTables[] = {Table(kE4M3), Table(kE5M2), Table(kScaledInt8)};

void widen_plainly(const Table& table, const Code* codes, int64_t count, BFloat16* to) {
  for (int64_t i = 0; i < count; ++i) {
    int code = codes[i].bits & (kCodes - 1), sign = codes[i].bits & kCodes;
    to[i] = {(uint16_t)((table.high[code] | sign) << 8 | table.low[code])};
  }
}

#if defined(__AVX512BW__)
// 64 at a time: the table fits into registers.
int64_t widen_by_permutation(const Table& table, const Code* codes, int64_t count, BFloat16* to) {
  const __m512i low0 = _mm512_loadu_si512(&table.low[0]), low1 = _mm512_loadu_si512(&table.low[64]);
  const __m512i high0 = _mm512_loadu_si512(&table.high[0]), high1 = _mm512_loadu_si512(&table.high[64]);
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // what unpacking in lanes undoes
  const __m512i sign = _mm512_set1_epi8((char)kCodes);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    __m512i code = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes + i));
    __m512i low = permute_bytes(code, low0, low1), high = permute_bytes(code, high0, high1);
    high = _mm512_ternarylogic_epi64(high, code, sign, 0xf8);  // high | (code & sign)
    _mm512_storeu_si512(to + i, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + i + 32, _mm512_unpackhi_epi8(low, high));
  }
  return i;
}
#endif

int magnitude_of(const SmallFloat& form, float size) {
  if (size != size) return kCodes - 1;
  constexpr int kFloatMantissa = 23, kFloatBias = 127;
  const int lost = kFloatMantissa - form.mantissa;
  const float smallest = std::ldexp(1.0f, 1 - form.bias), step = std::ldexp(1.0f, 1 - form.bias - form.mantissa);
  if (size < smallest) return (int)std::nearbyint(size / step);  // all steps are equal there; a carry gives the smallest
  uint32_t bits = load_as<uint32_t>(&size);
  uint32_t rounded = (bits + (1u << (lost - 1)) - 1 + (bits >> lost & 1)) >> lost;
  int64_t code = (int64_t)rounded - ((int64_t)(kFloatBias - form.bias) << form.mantissa);
  return (int)std::min<int64_t>(code, form.largest);
}

}  // namespace

void widen(int form, const Code* codes, int64_t count, BFloat16* to) {
  const Table& table = kTables[form - kE4M3];
  int64_t done = 0;
#if defined(__AVX512BW__)
  static const bool permutes = permutes_bytes();
  if (permutes) done = widen_by_permutation(table, codes, count, to);
#endif
  widen_plainly(table, codes + done, count - done, to + done);
}

Code narrow(int form, float x) {
  uint8_t sign = std::signbit(x) ? kCodes : 0;
  float size = std::fabs(x);
  if (form == kScaledInt8) return {(uint8_t)(sign | (int)std::nearbyint(std::min(kLargestInt8, size)))};
  return {(uint8_t)(sign | magnitude_of(form == kE4M3 ? kE4M3Float : kE5M2Float, size))};
}

}  // namespace lsv
