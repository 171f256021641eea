// Two passes over rows of logits for the CPU: the moments of a row, and the gradient of its log-prob and entropy.
//
// Portable SIMD (the vector extensions of GCC and Clang, 64, 32 or 16 bytes wide), a plain C ABI, no headers of torch.
// cpp_build.py compiles this file on first use; cpp_backend.py calls it. The formulas are those of moments.py and
// backend.py; reference.py is their specification.
//
// Shifted logits are exact: z - reference is subtracted before anything multiplies it, so an offset that all logits of
// a row have in common costs no accuracy. Sums are float32 within a block of columns and float64 across blocks.
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__clang__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif

enum { CHUNK = 2 * WIDTH };  // two independent sums hide the additions' latency

namespace {

typedef float Floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH), aligned(2), may_alias));

// Columns between two looks at the maximum, after which sums are float64.
const int64_t BLOCK_COLUMNS = 64 * CHUNK;
// A float32 sum adds 32 terms, and then goes into the block's: 64 in a row would lose twice as much to rounding.
const int64_t GROUP_COLUMNS = 32 * CHUNK;
// Near enough to stay in the first-level cache; the processor's own prefetching stops at the end of a page.
const int64_t PREFETCH_BYTES = 2048;
// Threads take about this many logits at a time.
const int64_t LOGITS_A_TURN = 1 << 16;

const double LOG_2 = 0.6931471805599453;
const float INF = INFINITY;

inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // b where a is NaN, and where both are

// ---- The three types of logits: how CHUNK of them are read and written. ----

struct Chunk {  // the first logit is the first of `one`; the order of the others is the type's own affair
  Floats one, other;
};

struct Float32 {
  typedef float Stored;
  static Stored masked() { return -INF; }
  static Chunk load(const Stored *from) { return {*(const Floats *)from, *(const Floats *)(from + WIDTH)}; }
  static void store(Stored *to, Chunk values) {
    *(Floats *)to = values.one;
    *(Floats *)(to + WIDTH) = values.other;
  }
};

// Two 16-bit numbers share a word: the chunk's even ones are its low halves, the odd ones its high halves.
const uint32_t LOW_HALF = 0xffff, HIGH_HALF = 0xffff0000;

// Round to nearest, ties to even, by what the bits below `kept` amount to. They are left as they come out.
inline Words rounded_at(Words bits, int kept) { return bits + ((1u << (kept - 1)) - 1) + ((bits >> kept) & 1u); }

struct BFloat16 {
  typedef uint16_t Stored;
  static Stored masked() { return 0xff80; }
  static Chunk load(const Stored *from) {
    const Words words = *(const Words *)from;
    return {(Floats)(words << 16), (Floats)(words & HIGH_HALF)};
  }
  static void store(Stored *to, Chunk values) {
    *(Words *)to = high_halves(values.one) >> 16 | (high_halves(values.other) & HIGH_HALF);
  }
  static Words high_halves(Floats values) {  // a NaN whose payload is all ones would round over into zero
    return values == values ? rounded_at((Words)values, 16) : Words{} + 0x7fc00000u;
  }
};

struct Float16 {
  typedef uint16_t Stored;
  static Stored masked() { return 0xfc00; }
  static Chunk load(const Stored *from) {
    const Words words = *(const Words *)from;
    return {widened(words & LOW_HALF), widened(words >> 16)};
  }
  static void store(Stored *to, Chunk values) { *(Words *)to = halved(values.one) | halved(values.other) << 16; }

  // Exponent and fraction moved into their float32 places are 2^112 too small: a product puts that right, for
  // subnormal numbers too. What comes out at 65536 or above was infinite or NaN.
  static Floats widened(Words half) {
    const Floats size = (Floats)((half & 0x7fffu) << 13) * 0x1p112f;
    const Words special = size >= all(65536.f) ? Words{} + 0x7f800000u : Words{};
    return (Floats)((Words)size | special | (half & 0x8000u) << 16);
  }
  static Words halved(Floats values) {
    const Words sign = (Words)values & 0x80000000u;
    const Floats size = (Floats)((Words)values ^ sign);
    Words half = rounded_at((Words)(size * 0x1p-112f), 13) >> 13;
    half = size >= all(65520.f) ? Words{} + 0x7c00u : half;
    half = values == values ? half : Words{} + 0x7e00u;
    return half | sign >> 16;
  }
};

template <class Type>
struct Tail {  // the last columns of a row, filled up with masked logits
  typename Type::Stored stored[CHUNK];
  Tail(const typename Type::Stored *from, int64_t columns) {
    for (int64_t i = 0; i < CHUNK; ++i) stored[i] = i < columns ? from[i] : Type::masked();
  }
  Chunk loaded() const { return Type::load(stored); }
};

template <class Type>
float loaded(typename Type::Stored value) {
  return Tail<Type>(&value, 1).loaded().one[0];
}

// ---- e^(x / T) ----

// e^y = 2^(n / STEPS) e^rest. The more steps a table holds, the shorter the polynomial for the rest; its coefficients
// make the largest relative error small (5e-8 of degree 2, 9e-8 of degree 5) and leave e^0 = 1 exact.
#if defined(__AVX512F__)
enum { STEPS_BITS = 5, DEGREE = 2 };
const double COEFFICIENTS[DEGREE] = {1.000014642, 0.49999998};
#else
enum { STEPS_BITS = 0, DEGREE = 5 };
const double COEFFICIENTS[DEGREE] = {0.99999971, 0.4999914953, 0.1666763619, 0.0418979293, 0.0082903147};
#endif
const int STEPS = 1 << STEPS_BITS;

#if defined(__AVX512F__)
inline Floats looked_up(Floats low, Floats high, Ints index) {  // by the index's last five bits
#if defined(__clang__)
  return (Floats)_mm512_permutex2var_ps((__m512)low, (__m512i)index, (__m512)high);
#else
  return __builtin_shuffle(low, high, index);
#endif
}
#endif

template <bool SCALED>  // whether T differs from 1
struct Exponential {
  float steps, step, step_rest;  // STEPS / (T log 2), its inverse, and what the inverse lacks as a float32
  float coefficients[DEGREE];    // of x instead of x / T
#if defined(__AVX512F__)
  Floats low_powers, high_powers;  // 2^(j / STEPS), with j's own bits taken from where they will be added
#endif

  explicit Exponential(double temperature) {
    const double exact = temperature * LOG_2 / STEPS;
    steps = (float)(1 / exact), step = (float)exact, step_rest = (float)(exact - step);
    double scale = 1;
    for (int degree = 0; degree < DEGREE; ++degree) {
      scale /= temperature;
      coefficients[degree] = (float)(COEFFICIENTS[degree] * scale);
    }
#if defined(__AVX512F__)
    for (int j = 0; j < STEPS; ++j) {
      const float power = (float)std::exp2(j / (double)STEPS);
      int32_t bits;
      memcpy(&bits, &power, sizeof bits);
      bits -= j << (23 - STEPS_BITS);
      memcpy((char *)(j < WIDTH ? &low_powers : &high_powers) + 4 * (j % WIDTH), &bits, sizeof bits);
    }
#endif
  }

  // For 2^-126 <= e^(x / T) < 2^127.
  Floats operator()(Floats x) const {
    const Floats magic = all(12582912.f);  // 1.5 * 2^23: adding it rounds, and leaves n in the low bits
    const Floats rounded = x * steps + magic, whole = rounded - magic;
    Floats rest = x - whole * step;
    if (SCALED) rest -= whole * step_rest;  // log 2 alone is a float32 to within 3e-9
    Floats polynomial = all(coefficients[DEGREE - 1]);
    for (int degree = DEGREE - 2; degree >= 0; --degree) polynomial = polynomial * rest + coefficients[degree];
    const Ints exponent = (Ints)rounded << (23 - STEPS_BITS);
#if defined(__AVX512F__)
    const Floats power = (Floats)(exponent + (Ints)looked_up(low_powers, high_powers, (Ints)rounded));
#else
    const Floats power = (Floats)(exponent + (127 << 23));
#endif
    return power * rest * polynomial + power;
  }
};

// ---- Moments ----

// A pass makes the first SUMS of these: 4, or 5 where entropies carry gradient.
enum { TOTAL, TOTAL_SHIFTED, SQUARE, SQUARE_SHIFTED, SQUARE_SHIFTED_TWICE };
enum { WITHOUT_SQUARES = SQUARE_SHIFTED_TWICE, WITH_SQUARES };

// Shifted logits are floored here, in powers of two: a masked logit adds 2^-62 to Z, never 0 * -inf, and squares stay
// normal numbers (processors are slow with others). A million of them change Z by 2e-13.
const double FLOOR_POWER = -62;
// The reference follows the maximum only once that is so many nats above it: fewer blocks are read twice. H is Z1 / Z
// off log Z, and Z1 loses the more digits the further the largest logits lie from the reference.
const double SLACK_NATS = 1.5;

template <int SUMS>
struct RowSums {
  double temperature;
  float floor, slack;              // in units of the logits
  float reference = -INF;          // what the sums are counted from; -inf before the first logit that is not masked
  double lanes[SUMS][WIDTH] = {};  // the shifted ones in units of the logits

  explicit RowSums(double temperature)
      : temperature(temperature), floor(FLOOR_POWER * LOG_2 * temperature), slack(SLACK_NATS * temperature) {}

  void count_from(float other) {
    const double change = (double)reference - other, scale = std::exp(change / temperature);
    if (reference != -INF)
      for (int lane = 0; lane < WIDTH; ++lane) {
        if (SUMS == WITH_SQUARES)
          lanes[SUMS - 1][lane] = scale * scale * (lanes[SUMS - 1][lane] + change * (2 * lanes[SQUARE_SHIFTED][lane] +
                                                                                    change * lanes[SQUARE][lane]));
        lanes[TOTAL_SHIFTED][lane] = scale * (lanes[TOTAL_SHIFTED][lane] + change * lanes[TOTAL][lane]);
        lanes[TOTAL][lane] *= scale;
        lanes[SQUARE_SHIFTED][lane] = scale * scale * (lanes[SQUARE_SHIFTED][lane] + change * lanes[SQUARE][lane]);
        lanes[SQUARE][lane] *= scale * scale;
      }
    reference = other;
  }
};

inline float largest(Floats values) {
  for (int half = WIDTH / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      values[lane] = values[lane] > values[lane + half] ? values[lane] : values[lane + half];
  return values[0];
}

struct Seen {
  float maximum;
  bool nan;
};

template <class Type>
Seen look_at_block(const typename Type::Stored *logits, int64_t columns) {
  Floats maximum = all(-INF);
  Ints nan = {};
  auto look = [&](Chunk values) {
    maximum = larger(values.one, larger(values.other, maximum));
    nan |= (values.one != values.one) | (values.other != values.other);
  };
  int64_t column = 0;
  for (; column + CHUNK <= columns; column += CHUNK) look(Type::load(logits + column));
  if (column < columns) look(Tail<Type>(logits + column, columns - column).loaded());
  bool any = false;
  for (int lane = 0; lane < WIDTH; ++lane) any |= nan[lane] != 0;
  return {largest(maximum), any};
}

inline void prefetch(const void *from) {
  for (int line = 0; line < 4 * CHUNK; line += 64) __builtin_prefetch((const char *)from + PREFETCH_BYTES + line);
}

// One block's sums, counted from the row's reference; returns the block's maximum.
template <class Type, class Exp, int SUMS>
inline float sum_block(const typename Type::Stored *logits, int64_t columns, const RowSums<SUMS> &row, Exp exponential,
                       Floats sums[SUMS]) {
  const Floats reference = all(row.reference), floor = all(row.floor);
  Floats one_maximum = all(-INF), other_maximum = one_maximum;
  auto add = [&](Floats values, Floats *sums, Floats &maximum) {
    maximum = larger(values, maximum);
    const Floats shifted = larger(floor, values - reference);  // a NaN goes through
    const Floats weight = exponential(shifted), weighted = weight * shifted;
    sums[TOTAL] += weight;
    sums[TOTAL_SHIFTED] += weighted;
    sums[SQUARE] += weight * weight;
    sums[SQUARE_SHIFTED] += weight * weighted;
    if (SUMS == WITH_SQUARES) sums[SUMS - 1] += weighted * weighted;
  };
  for (int sum = 0; sum < SUMS; ++sum) sums[sum] = Floats{};
  for (int64_t column = 0; column < columns;) {
    Floats one[SUMS] = {}, other[SUMS] = {};
    auto add_chunk = [&](Chunk values) {
      add(values.one, one, one_maximum);
      add(values.other, other, other_maximum);
    };
    const int64_t end = column + GROUP_COLUMNS < columns ? column + GROUP_COLUMNS : columns;
    for (; column + CHUNK <= end; column += CHUNK) {
      prefetch(logits + column);
      add_chunk(Type::load(logits + column));
    }
    if (column < end) add_chunk(Tail<Type>(logits + column, end - column).loaded());
    column = end;
    for (int sum = 0; sum < SUMS; ++sum) sums[sum] += one[sum] + other[sum];
  }
  return largest(larger(one_maximum, other_maximum));
}

template <class Type, class Exp, int SUMS>
float add_block(const typename Type::Stored *logits, int64_t columns, const Exp &exponential, RowSums<SUMS> &row) {
  if (row.reference == -INF) {
    const Seen seen = look_at_block<Type>(logits, columns);
    if (seen.nan) row.lanes[TOTAL][0] = NAN;
    if (seen.maximum == -INF) return -INF;
    row.count_from(seen.maximum);
  }
  Floats sums[SUMS];
  const float maximum = sum_block<Type>(logits, columns, row, exponential, sums);
  if (maximum > row.reference + row.slack) {
    row.count_from(maximum);
    sum_block<Type>(logits, columns, row, exponential, sums);
  }
  for (int sum = 0; sum < SUMS; ++sum)
    for (int lane = 0; lane < WIDTH; ++lane) row.lanes[sum][lane] += (double)sums[sum][lane];
  return maximum;
}

// Writes maximum, Z, Z1, Q0, Q1, the chosen token's d and, with squares, Q2, `apart` numbers from one to the next.
template <class Type, int SUMS, class Exp>
void moments_of_row(const typename Type::Stored *logits, int64_t columns, int64_t chosen, double temperature,
                    const Exp &exponential, double *moments, int64_t apart) {
  RowSums<SUMS> row(temperature);
  float maximum = -INF;
  for (int64_t column = 0; column < columns; column += BLOCK_COLUMNS) {
    const int64_t left = columns - column;
    const float found = add_block<Type>(logits + column, left < BLOCK_COLUMNS ? left : BLOCK_COLUMNS,
                                        exponential, row);
    maximum = found > maximum ? found : maximum;
  }
  row.count_from(maximum);
  double sums[SUMS] = {};
  for (int sum = 0; sum < SUMS; ++sum)
    for (int lane = 0; lane < WIDTH; ++lane) sums[sum] += row.lanes[sum][lane];
  const float logit = chosen >= 0 && chosen < columns ? loaded<Type>(logits[chosen]) : -INF;
  moments[0] = maximum / temperature;
  moments[1 * apart] = sums[TOTAL];
  moments[2 * apart] = sums[TOTAL_SHIFTED] / temperature;
  moments[3 * apart] = sums[SQUARE];
  moments[4 * apart] = sums[SQUARE_SHIFTED] / temperature;
  moments[5 * apart] = logit == -INF ? -INF : ((double)logit - maximum) / temperature;
  if (SUMS == WITH_SQUARES) moments[6 * apart] = sums[SUMS - 1] / (temperature * temperature);
}

// ---- Gradient ----

// Below this power of two a probability's gradient is exactly 0, as a masked logit's.
const double ZERO_POWER = -100;

struct Upstream {
  double log_normalizer, logprob, entropy, entropies;  // L, g, h, H
};

template <class Type>
void fill(typename Type::Stored *gradient, int64_t columns, float value) {
  typename Type::Stored stored[CHUNK];
  Type::store(stored, {all(value), all(value)});
  for (int64_t column = 0; column < columns; ++column) gradient[column] = stored[0];
}

// (g (1 - p) - h p (H + log p)) / T of the sampled token itself, in float64: 1 - p would cancel in float32.
double gradient_of_chosen(double logit, double temperature, const Upstream &row) {
  const double logprob = logit / temperature - row.log_normalizer, probability = std::exp(logprob);
  const double from_entropy = probability > 0 ? row.entropy * probability * (row.entropies + logprob) : 0;
  return (row.logprob * (1 - probability) - from_entropy) / temperature;
}

template <class Type, class Exp>
void gradient_of_row(const typename Type::Stored *logits, int64_t columns, int64_t chosen, double temperature,
                     const Exp &given, const Upstream &row, typename Type::Stored *gradient) {
  if (row.logprob == 0 && row.entropy == 0) return fill<Type>(gradient, columns, 0);  // gated or padded, NaN or not
  if (!std::isfinite(row.log_normalizer)) return fill<Type>(gradient, columns, NAN);
  // log p = (z - centre) / T + remainder: the subtraction is exact, the remainder small.
  const float centre = (float)(row.log_normalizer * temperature);
  const double remainder = centre / temperature - row.log_normalizer, factor = -std::exp(remainder) / temperature;
  const Exp exponential = given;
  // -p (g + h (H + log p)) / T = e^(shifted / T) (constant + slope * shifted)
  const float constant = (float)(factor * (row.logprob + row.entropy * (row.entropies + remainder)));
  const float slope = (float)(factor * row.entropy / temperature);
  const Floats zero = all((float)(ZERO_POWER * LOG_2 * temperature));
  auto of = [&](Floats values) {
    const Floats shifted = larger(zero, values - centre);
    return shifted == zero ? Floats{} : exponential(shifted) * (shifted * slope + constant);
  };
  int64_t column = 0;
  for (; column + CHUNK <= columns; column += CHUNK) {
    prefetch(logits + column);
    const Chunk values = Type::load(logits + column);
    Type::store(gradient + column, {of(values.one), of(values.other)});
  }
  if (column < columns) {
    Tail<Type> tail(logits + column, columns - column);
    const Chunk values = tail.loaded();
    Type::store(tail.stored, {of(values.one), of(values.other)});
    memcpy(gradient + column, tail.stored, (columns - column) * sizeof *gradient);
  }
  if (chosen >= 0 && chosen < columns)
    fill<Type>(gradient + chosen, 1, (float)gradient_of_chosen(loaded<Type>(logits[chosen]), temperature, row));
}

// ---- Rows and threads ----

// What cpp_backend.py passes as a ctypes.Structure of the same fields.
struct Logits {
  const void *data;
  int64_t type;  // 0 float32, 1 bfloat16, 2 float16
  int64_t rows, columns;
  int64_t dimensions;                  // those of the rows: all but the last
  const int64_t *sizes, *strides;      // of these dimensions; the last dimension's stride is 1
  const int64_t *token_ids;            // one per row
  int64_t start;                       // the token of the first column
  double temperature;                  // of all rows, where `temperatures` is null
  const double *temperatures;          // one per row
};

// The type of GOMP_parallel: runs work(shared) on so many threads of the pool that torch computes with.
typedef void (*Team)(void (*work)(void *), void *shared, unsigned threads, unsigned flags);

int64_t offset_of_row(const Logits &logits, int64_t row) {
  int64_t offset = 0;
  for (int64_t dimension = logits.dimensions - 1; dimension >= 0; --dimension) {
    offset += row % logits.sizes[dimension] * logits.strides[dimension];
    row /= logits.sizes[dimension];
  }
  return offset;
}

// Calls work(row, temperature, exponential) once for every row, on any number of threads that the team brings.
template <bool SCALED, class Work>
void for_each_row(const Logits &logits, Team team, unsigned threads, const Work &work) {
  struct Shared {
    const Work &work;
    const Logits &logits;
    const Exponential<SCALED> exponential;
    int64_t rows, a_turn, next;
  } shared = {work, logits, Exponential<SCALED>(logits.temperature), logits.rows,
              1 + LOGITS_A_TURN / (logits.columns + 1), 0};
  auto take_turns = [](void *pointer) {
    Shared &shared = *(Shared *)pointer;
    for (;;) {
      const int64_t first = __atomic_fetch_add(&shared.next, shared.a_turn, __ATOMIC_RELAXED);
      if (first >= shared.rows) return;
      for (int64_t row = first; row < first + shared.a_turn && row < shared.rows; ++row) {
        const double *own = shared.logits.temperatures;
        if (own) shared.work(row, own[row], Exponential<SCALED>(own[row]));
        else shared.work(row, shared.logits.temperature, shared.exponential);
      }
    }
  };
  if (team && threads > 1 && shared.rows > shared.a_turn) team(take_turns, &shared, threads, 0);
  else take_turns(&shared);
}

template <class Type, bool SCALED, int SUMS>
struct AnyMomentsPass {
  static void run(const Logits &logits, double *moments, Team team, unsigned threads) {
    for_each_row<SCALED>(logits, team, threads, [&](int64_t row, double temperature, const Exponential<SCALED> &exponential) {
      moments_of_row<Type, SUMS>((const typename Type::Stored *)logits.data + offset_of_row(logits, row), logits.columns,
                           logits.token_ids[row] - logits.start, temperature, exponential, moments + row,
                           logits.rows);
    });
  }
};

template <class Type, bool SCALED>
struct MomentsPass : AnyMomentsPass<Type, SCALED, WITHOUT_SQUARES> {};

template <class Type, bool SCALED>
struct SquaredMomentsPass : AnyMomentsPass<Type, SCALED, WITH_SQUARES> {};

template <class Type, bool SCALED>
struct GradientPass {
  static void run(const Logits &logits, const Upstream *upstream, void *gradient, Team team, unsigned threads) {
    for_each_row<SCALED>(logits, team, threads, [&](int64_t row, double temperature, const Exponential<SCALED> &exponential) {
      gradient_of_row<Type>((const typename Type::Stored *)logits.data + offset_of_row(logits, row), logits.columns,
                            logits.token_ids[row] - logits.start, temperature, exponential, upstream[row],
                            (typename Type::Stored *)gradient + row * logits.columns);
    });
  }
};

template <template <class, bool> class Pass, class... Arguments>
void over(const Logits &logits, Arguments... arguments) {
  const bool scaled = logits.temperatures || logits.temperature != 1;
  if (logits.type == 0) (scaled ? Pass<Float32, true>::run : Pass<Float32, false>::run)(logits, arguments...);
  if (logits.type == 1) (scaled ? Pass<BFloat16, true>::run : Pass<BFloat16, false>::run)(logits, arguments...);
  if (logits.type == 2) (scaled ? Pass<Float16, true>::run : Pass<Float16, false>::run)(logits, arguments...);
}

}  // namespace

// moments: [6, rows]
extern "C" void isentrope_row_moments(const Logits *logits, double *moments, Team team, unsigned threads) {
  over<MomentsPass>(*logits, moments, team, threads);
}

// moments: [7, rows], the last one Q2
extern "C" void isentrope_row_moments_squared(const Logits *logits, double *moments, Team team, unsigned threads) {
  over<SquaredMomentsPass>(*logits, moments, team, threads);
}

// upstream: [rows, 4] = L, g, h, H; gradient: [rows, columns], dense, of the logits' type
extern "C" void isentrope_logit_gradient(const Logits *logits, const Upstream *upstream, void *gradient, Team team,
                                         unsigned threads) {
  over<GradientPass>(*logits, upstream, gradient, team, threads);
}
