// Keys and values in 8 bits. Every form is a sign and 7 bits of magnitude, so that one table of 128 numbers widens it;
// all of them are exact in bfloat16. fp8 as in the OCP 8-bit Floating Point Specification 1.0 (E4M3 has no infinities);
// int8 as sign and magnitude, with a scale for each token and head beside the codes.
#pragma once

#include <cstdint>

#include "vector.h"

namespace lsv {

enum Form { kAsTensors = 0, kE4M3 = 1, kE5M2 = 2, kScaledInt8 = 3 };  // of a cache

struct Code { uint8_t bits; };

constexpr float kLargestInt8 = 127.0f;

// to[i] = the number codes[i] stands for. A NaN stays one.
void widen(int form, const Code* codes, int64_t count, BFloat16* to);

// The code nearest to x, ties to even; the largest of its sign for what is larger, infinity too. A NaN stays one if the
// form has any.
Code narrow(int form, float x);

}  // namespace lsv
