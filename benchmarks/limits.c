/* What this machine can do at most, as one line of JSON: read bandwidth in GB/s, and the rates of its matrix and dot
   product instructions in TFLOP/s or TOP/s. Built and run by machine.py:

     cc -O3 -march=native -pthread limits.c -o limits && ./limits THREADS MEBIBYTES

   Every figure is the best of a few short passes: it is a ceiling, not an average. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PASSES = 5, MAX_THREADS = 256, LINE = 64, BURST = 4 * LINE, REGISTERS = 12, ROUNDS = 1 << 22 };

typedef double (*Kernel)(const char *data, size_t bytes);

typedef struct {
  Kernel kernel;
  const char *data;
  size_t bytes;
  pthread_barrier_t *gate;
  int core;
  double sum, began, ended;
} Part;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

#if defined(__AVX512F__)
typedef __m512 Vector;
#define ZERO _mm512_setzero_ps()
#define ADD(sum, at) _mm512_add_ps(sum, _mm512_loadu_ps((const float *)(at)))
#else
typedef __m256 Vector;
#define ZERO _mm256_setzero_ps()
#define ADD(sum, at) _mm256_add_ps(sum, _mm256_loadu_ps((const float *)(at)))
#endif

static double fold(const Vector *sums, int count) {
  double total = 0;
  for (int i = 0; i < count; i++)
    for (size_t lane = 0; lane < sizeof(Vector) / sizeof(float); lane++) total += ((const float *)&sums[i])[lane];
  return total;
}

/* Reads bytes as `streams` sequential streams, each asked for `ahead` bytes early (0: left to the hardware). */
static inline __attribute__((always_inline)) double read_streams(const char *data, size_t bytes, int streams, int ahead) {
  Vector sums[4] = {ZERO, ZERO, ZERO, ZERO};
  const size_t length = bytes / streams / BURST * BURST;
  for (size_t at = 0; at < length; at += BURST)
    for (int stream = 0; stream < streams; stream++) {
      const char *burst = data + stream * length + at;
      if (ahead)
        for (int line = 0; line < BURST; line += LINE) _mm_prefetch(burst + ahead + line, _MM_HINT_T0);
      for (size_t i = 0; i < BURST; i += sizeof(Vector)) sums[i / sizeof(Vector) % 4] = ADD(sums[i / sizeof(Vector) % 4], burst + i);
    }
  return fold(sums, 4);
}

static double read_plain(const char *data, size_t bytes) { return read_streams(data, bytes, 1, 0); }
static double read_ahead(const char *data, size_t bytes) { return read_streams(data, bytes, 1, 1024); }
static double read_pair(const char *data, size_t bytes) { return read_streams(data, bytes, 2, 512); }
static double read_four(const char *data, size_t bytes) { return read_streams(data, bytes, 4, 2048); }

/* One round of an instruction on twelve accumulators, named so that they stay in registers; the empty asm keeps the
   compiler from folding rounds together or dropping them. */
#define EACH(DO) DO(a) DO(b) DO(c) DO(d) DO(e) DO(f) DO(g) DO(h) DO(i) DO(j) DO(k) DO(l)
#define SPIN(TYPE, START, STEP)               \
  const TYPE start = START;                   \
  EACH(DECLARE_##TYPE)                        \
  for (long round = 0; round < ROUNDS; round++) { EACH(STEP) } \
  return 0;
#define DECLARE___m512(name) __m512 name = start;
#define DECLARE___m512i(name) __m512i name = start;
#define DECLARE___m256(name) __m256 name = start;
#define KEEP(name) __asm__ volatile("" : "+v"(name));

#if defined(__AVX512F__)
#define STEP_spin_fp32(name) name = _mm512_fmadd_ps(one, one, name); KEEP(name)
static double spin_fp32(const char *data, size_t bytes) {
  const __m512 one = _mm512_set1_ps(1.0f);
  (void)data, (void)bytes;
  SPIN(__m512, _mm512_setzero_ps(), STEP_spin_fp32)
}
#define FP32_WORK (2.0 * 16)
#else
#define STEP_spin_fp32(name) name = _mm256_fmadd_ps(one, one, name); KEEP(name)
static double spin_fp32(const char *data, size_t bytes) {
  const __m256 one = _mm256_set1_ps(1.0f);
  (void)data, (void)bytes;
  SPIN(__m256, _mm256_setzero_ps(), STEP_spin_fp32)
}
#define FP32_WORK (2.0 * 8)
#endif

#if defined(__AVX512BF16__)
#define STEP_spin_bf16(name) name = _mm512_dpbf16_ps(name, one, one); KEEP(name)
static double spin_bf16(const char *data, size_t bytes) {
  const __m512bh one = (__m512bh)_mm512_loadu_si512(data);
  (void)bytes;
  SPIN(__m512, _mm512_setzero_ps(), STEP_spin_bf16)
}
#endif

#if defined(__AVX512VNNI__)
#define STEP_spin_int8(name) name = _mm512_dpbusd_epi32(name, one, one); KEEP(name)
static double spin_int8(const char *data, size_t bytes) {
  const __m512i one = _mm512_loadu_si512(data);
  (void)bytes;
  SPIN(__m512i, _mm512_setzero_si512(), STEP_spin_int8)
}
#endif

#if defined(__AMX_TILE__)
enum { TILE_ROUNDS = 1 << 20, TILES_A_ROUND = 4 };

static void set_tiles(void) {
  struct {
    uint8_t palette, start, unused[14];
    uint16_t columns[16];
    uint8_t rows[16];
  } shape __attribute__((aligned(64))) = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    shape.columns[i] = LINE;
    shape.rows[i] = 16;
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(shape) : "memory");
  __asm__ volatile("tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
                   "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7" ::: "memory");
}

#define SPIN_TILES(NAME, OP)                                                                         \
  static double NAME(const char *data, size_t bytes) {                                               \
    (void)data, (void)bytes;                                                                         \
    set_tiles();                                                                                     \
    for (long round = 0; round < TILE_ROUNDS; round++)                                               \
      __asm__ volatile(OP " %%tmm6, %%tmm4, %%tmm0\n" OP " %%tmm7, %%tmm4, %%tmm1\n" OP              \
                          " %%tmm6, %%tmm5, %%tmm2\n" OP " %%tmm7, %%tmm5, %%tmm3" ::: "memory");    \
    __asm__ volatile("tilerelease" ::: "memory");                                                    \
    return 0;                                                                                        \
  }
SPIN_TILES(spin_tiles_bf16, "tdpbf16ps")
SPIN_TILES(spin_tiles_int8, "tdpbssd")

static int may_use_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#endif

static void *run_part(void *argument) {
  Part *part = argument;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(part->core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  pthread_barrier_wait(part->gate);
  part->began = now();
  part->sum = part->kernel(part->data, part->bytes);
  part->ended = now();
  return NULL;
}

static int nth_core(int n) {
  static cpu_set_t ours;
  sched_getaffinity(0, sizeof ours, &ours);
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &ours) && n-- == 0) return core;
  return 0;
}

/* Seconds of the fastest of a few passes of `kernel` on all threads, each with its own part of the data. */
static double best_seconds(Kernel kernel, int threads, const char *data, size_t bytes) {
  static Part parts[MAX_THREADS];
  static pthread_t team[MAX_THREADS];
  double best = 1e30;
  volatile double kept = 0;
  for (int pass = 0; pass < PASSES; pass++) {
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, threads);
    for (int i = 0; i < threads; i++) {
      const size_t share = bytes / threads;
      parts[i] = (Part){.kernel = kernel, .data = data + i * share, .bytes = share, .gate = &gate, .core = nth_core(i)};
      if (pthread_create(&team[i], NULL, run_part, &parts[i])) exit(3);
    }
    double began = 1e300, ended = 0;
    for (int i = 0; i < threads; i++) {
      pthread_join(team[i], NULL);
      kept += parts[i].sum;
      if (parts[i].began < began) began = parts[i].began;
      if (parts[i].ended > ended) ended = parts[i].ended;
    }
    pthread_barrier_destroy(&gate);
    if (ended - began < best) best = ended - began;
  }
  return best;
}

int main(int count, char **arguments) {
  const int threads = count > 1 ? atoi(arguments[1]) : 1;
  const size_t bytes = (size_t)(count > 2 ? atoi(arguments[2]) : 1024) << 20;
  if (threads < 1 || threads > MAX_THREADS || bytes == 0) return 2;
  char *data = mmap(NULL, bytes + (1 << 21), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return 4;
  data = (char *)(((uintptr_t)data + (1 << 21) - 1) & ~(uintptr_t)((1 << 21) - 1));
  madvise(data, bytes, MADV_HUGEPAGE);
  for (size_t at = 0; at < bytes; at += 4096) data[at] = 1;

  const Kernel patterns[] = {read_plain, read_ahead, read_pair, read_four};
  const double plain = bytes / best_seconds(patterns[0], threads, data, bytes) / 1e9;
  double fastest = plain;
  for (int i = 1; i < 4; i++) {
    const double rate = bytes / best_seconds(patterns[i], threads, data, bytes) / 1e9;
    if (rate > fastest) fastest = rate;
  }
  const double spins = 1e-12 * threads * ROUNDS * REGISTERS;
  const double fp32 = spins * FP32_WORK / best_seconds(spin_fp32, threads, data, LINE * threads);
  double bf16 = fp32, int8 = 0;
#if defined(__AVX512BF16__)
  bf16 = spins * 64 / best_seconds(spin_bf16, threads, data, LINE * threads);
#endif
#if defined(__AVX512VNNI__)
  int8 = spins * 128 / best_seconds(spin_int8, threads, data, LINE * threads);
#endif
#if defined(__AMX_TILE__)
  if (may_use_tiles()) {
    const double tiles = 1e-12 * threads * TILE_ROUNDS * TILES_A_ROUND;
    bf16 = tiles * 16384 / best_seconds(spin_tiles_bf16, threads, data, LINE * threads);
    int8 = tiles * 32768 / best_seconds(spin_tiles_int8, threads, data, LINE * threads);
  }
#endif
  printf("{\"threads\": %d, \"read_plain_gbps\": %.2f, \"read_gbps\": %.2f, \"fp32_tflops\": %.3f, "
         "\"bf16_tflops\": %.3f, \"int8_tops\": %.3f}\n", threads, plain, fastest, fp32, bf16, int8);
  return 0;
}
