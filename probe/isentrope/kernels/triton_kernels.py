"""The passes of `moments.py` as Triton kernels: the logits are read once, the rest is a few numbers
a row.

The moments kernel counts in units of the logits while it reads, and turns to nats in float64 when a
row is done. With M the largest logit so far, u = z - M, which float32 holds exactly near M whatever
the logits have in common, and c = log2(e) / T,

    weight = e^(u / T) = 2^(c u)      Z += weight  Z1 += u weight  Q0 += weight^2  Q1 += u weight^2,

and, where SQUARED, Q2 += u^2 weight^2: else it is a constant 0, of which the compiled kernel has no
trace.

A row may be split over several programs; `merged_splits` puts their moments together. Blocks begin
at multiples of 16 elements from the start of the tensor's memory, not at a row's first logit, so
that whole blocks are read in 16-byte pieces also where the vocabulary is odd or the tensor a view;
the two blocks that hold a row's ends are read apart, with a mask.

A float64 number reaches a kernel as two float32 numbers that add up to it: Triton passes a Python
float as float32."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False,
# disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import triton
import triton.language as tl

ALIGNMENT = tl.constexpr(16)
"""Elements: at least 16 bytes in every type the kernels read, and a whole number of 32-bit
words."""

LOG2_E = tl.constexpr(1.4426950408889634)

WORDS = tl.constexpr(4)
"""32-bit words that a thread reads at once: 16 bytes, the longest single read."""

LOWEST_SHIFT = tl.constexpr(-700.0)
"""Nats: e^-700 is still a positive float64 and 0 in float32; 0 * -700 is 0 where 0 * -inf would be
NaN."""

MOMENTS = tl.constexpr(6)
"""One more where SQUARED."""


@triton.jit
def row_offset(row, inner_rows, offset_storage, outer_stride, inner_stride):
    """Elements before a row's first: rows lie `inner_stride` apart, groups of `inner_rows` of them
    `outer_stride`."""
    outer = (row // inner_rows).to(tl.int64)
    inner = (row % inner_rows).to(tl.int64)
    return offset_storage + outer * outer_stride + inner * inner_stride


@triton.jit
def float64_of(value, rest):
    """The number that was passed in two halves."""
    return tl.cast(value, tl.float64) + tl.cast(rest, tl.float64)


@triton.jit
def halves(words, LOGITS_TYPE: tl.constexpr):
    """The two 16-bit logits of each 32-bit word, in float32."""
    if LOGITS_TYPE == tl.bfloat16:  # noqa: SIM300  Triton 3.2 finds the other order unequal
        # A bfloat16 is the upper half of a float32: one instruction a logit.
        left = (words << 16).to(tl.float32, bitcast=True)
        right = (words & -65536).to(tl.float32, bitcast=True)
    else:
        left = words.to(tl.int16).to(LOGITS_TYPE, bitcast=True).to(tl.float32)
        right = (words >> 16).to(tl.int16).to(LOGITS_TYPE, bitcast=True).to(tl.float32)
    return left, right


@triton.jit
def read_block(
    words_ptr,
    block,
    lead,
    end,
    WHOLE: tl.constexpr,
    LOGITS_TYPE: tl.constexpr,
    GROUPS: tl.constexpr,
    THREADS: tl.constexpr,
):
    """One block of logits in float32, as two tiles [GROUPS, THREADS, WORDS]: their order does not
    matter to a sum.

    Unless the block is WHOLE, what lies outside the elements [lead, end) is -inf.
    """
    LANES: tl.constexpr = THREADS * WORDS
    offset_tile = tl.arange(0, GROUPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    if LOGITS_TYPE == tl.float32:  # noqa: SIM300
        offset_left = block * (2 * GROUPS * LANES) + offset_tile
        offset_right = offset_left + GROUPS * LANES
        if WHOLE:
            left = tl.load(words_ptr + offset_left)
            right = tl.load(words_ptr + offset_right)
        else:
            in_left = (offset_left >= lead) & (offset_left < end)
            in_right = (offset_right >= lead) & (offset_right < end)
            left = tl.load(words_ptr + offset_left, mask=in_left, other=-float("inf"))
            right = tl.load(words_ptr + offset_right, mask=in_right, other=-float("inf"))
    else:
        offset_word = block * (GROUPS * LANES) + offset_tile
        if WHOLE:
            left, right = halves(tl.load(words_ptr + offset_word), LOGITS_TYPE)
        else:
            # A word that the row begins or ends within is read whole: memory is handed out in words
            # and more.
            in_words = (2 * offset_word + 1 >= lead) & (2 * offset_word < end)
            left, right = halves(
                tl.load(words_ptr + offset_word, mask=in_words, other=0), LOGITS_TYPE
            )
            left = tl.where(in_words & (2 * offset_word >= lead), left, -float("inf"))
            right = tl.where(in_words & (2 * offset_word + 1 < end), right, -float("inf"))
    # Read as [GROUPS, LANES], a thread's words are neighbours; so seen, what one thread holds is
    # added up within it.
    return tl.reshape(left, [GROUPS, THREADS, WORDS]), tl.reshape(right, [GROUPS, THREADS, WORDS])


@triton.jit
def reduce_threads(values, MAXIMUM: tl.constexpr):
    """The sum, or the largest, of what each thread holds of a tile [GROUPS, THREADS, WORDS]:
    [THREADS], and no exchange."""
    if MAXIMUM:
        return tl.max(tl.max(values, 2), 0)
    return tl.sum(tl.sum(values, 2), 0)


@triton.jit
def absorb(
    left,
    right,
    maximum,
    total,
    total_shifted,
    square,
    square_shifted,
    square_twice,
    exponent_scale,
    floor,
    SQUARED: tl.constexpr,
):
    """Add two tiles of logits to the sums [THREADS], each counted from the largest logit its thread
    has seen: the threads wait for each other only at the end of a row."""
    largest = tl.maximum(maximum, reduce_threads(tl.maximum(left, right), True))
    # A thread that saw only masked logits has no maximum to count from, and needs none: 2^-inf is
    # 0.
    centre = tl.where(largest == -float("inf"), 0.0, largest)
    # The change is -inf where nothing was counted yet: floored, it makes the scale 0 and keeps 0 *
    # inf away.
    change = tl.maximum(maximum - centre, floor)
    scale = tl.exp2(change * exponent_scale)
    square_scale = scale * scale
    total_shifted = scale * (total_shifted + change * total)
    total = scale * total
    if SQUARED:
        square_twice = square_scale * (
            square_twice + change * (2 * square_shifted + change * square)
        )
    square_shifted = square_scale * (square_shifted + change * square)
    square = square_scale * square
    total, total_shifted, square, square_shifted, square_twice = add(
        left,
        centre,
        total,
        total_shifted,
        square,
        square_shifted,
        square_twice,
        exponent_scale,
        floor,
        SQUARED,
    )
    total, total_shifted, square, square_shifted, square_twice = add(
        right,
        centre,
        total,
        total_shifted,
        square,
        square_shifted,
        square_twice,
        exponent_scale,
        floor,
        SQUARED,
    )
    return largest, total, total_shifted, square, square_shifted, square_twice


@triton.jit
def add(
    logits,
    centre,
    total,
    total_shifted,
    square,
    square_shifted,
    square_twice,
    exponent_scale,
    floor,
    SQUARED: tl.constexpr,
):
    """Add a tile [GROUPS, THREADS, WORDS] to the four or five sums [THREADS], which are counted
    from `centre` [THREADS]."""
    shifted = logits - centre[None, :, None]
    weight = tl.exp2(shifted * exponent_scale)
    # The floor replaces -inf, whose weight is 0. It lets a NaN go: that is in the weight.
    weight_shifted = weight * tl.maximum(shifted, floor)
    total += reduce_threads(weight, False)
    total_shifted += reduce_threads(weight_shifted, False)
    square += reduce_threads(weight * weight, False)
    square_shifted += reduce_threads(weight * weight_shifted, False)
    if SQUARED:
        square_twice += reduce_threads(weight_shifted * weight_shifted, False)
    return total, total_shifted, square, square_shifted, square_twice


@triton.jit(do_not_specialize=["rows", "splits", "inner_rows", "start"])
def moments_kernel(
    logits_ptr,
    words_ptr,
    token_ids_ptr,
    moments_ptr,
    rows,
    columns,
    splits,
    inner_rows,
    offset_storage,
    outer_stride,
    inner_stride,
    start,
    temperatures_ptr,
    exponent_scale,
    floor,
    inverse_temperature,
    inverse_temperature_rest,
    PER_ROW: tl.constexpr,
    SQUARED: tl.constexpr,
    GROUPS: tl.constexpr,
    THREADS: tl.constexpr,
):
    """Moments of one split of one row; the grid is (rows, splits).

    Args:
        logits_ptr, words_ptr: the start of the logits' memory, as logits and as 32-bit words (as
            float32 for float32).
        token_ids_ptr: [rows], counted over the whole vocabulary.
        moments_ptr: float64 [splits, 6, rows], in the order of `Moments`; with Q2 [splits, 7, rows]
            where SQUARED.
        inner_rows, offset_storage, outer_stride, inner_stride: where a row begins, see
            `row_offset`.
        start: the token of the first column.
        exponent_scale: c = log2(e) / T.
        floor: a u so low that its weight is 0.
        inverse_temperature, inverse_temperature_rest: 1 / T.
        temperatures_ptr: float64 [rows], T of each row where PER_ROW; the numbers above are then
            those of T = 1.
    """
    BLOCK: tl.constexpr = 2 * GROUPS * THREADS * WORDS
    LOGITS_TYPE: tl.constexpr = logits_ptr.dtype.element_ty
    row = tl.program_id(0)
    split = tl.program_id(1)
    offset_row = row_offset(row, inner_rows, offset_storage, outer_stride, inner_stride)
    lead = (offset_row % ALIGNMENT).to(tl.int32)
    end = lead + columns
    blocks = tl.cdiv(end, BLOCK)
    share = tl.cdiv(blocks, splits)
    first = split * share
    last = tl.minimum(first + share, blocks)
    if LOGITS_TYPE == tl.float32:  # noqa: SIM300
        words_ptr += offset_row // ALIGNMENT * ALIGNMENT
    else:
        words_ptr += offset_row // ALIGNMENT * (ALIGNMENT // 2)

    inverse = float64_of(inverse_temperature, inverse_temperature_rest)
    if PER_ROW:
        temperature = tl.load(temperatures_ptr + row)
        inverse = 1.0 / temperature
        exponent_scale = (inverse * LOG2_E).to(tl.float32)
        floor = floor * temperature.to(tl.float32)

    maximum = tl.full([THREADS], -float("inf"), tl.float32)
    total = tl.zeros([THREADS], tl.float32)
    total_shifted = tl.zeros([THREADS], tl.float32)
    square = tl.zeros([THREADS], tl.float32)
    square_shifted = tl.zeros([THREADS], tl.float32)
    square_twice = tl.zeros([THREADS], tl.float32)
    # Blocks that lie within the row whole; of the others there are two at most.
    whole_from = tl.where(lead > 0, 1, 0)
    whole_to = end // BLOCK
    for block in range(tl.maximum(first, whole_from), tl.minimum(last, whole_to)):
        left, right = read_block(words_ptr, block, lead, end, True, LOGITS_TYPE, GROUPS, THREADS)
        maximum, total, total_shifted, square, square_shifted, square_twice = absorb(
            left,
            right,
            maximum,
            total,
            total_shifted,
            square,
            square_shifted,
            square_twice,
            exponent_scale,
            floor,
            SQUARED,
        )
    for side in range(tl.minimum(blocks, 2)):
        block = side * (blocks - 1)
        if (block >= first) & (block < last) & ((block < whole_from) | (block >= whole_to)):
            left, right = read_block(
                words_ptr, block, lead, end, False, LOGITS_TYPE, GROUPS, THREADS
            )
            maximum, total, total_shifted, square, square_shifted, square_twice = absorb(
                left,
                right,
                maximum,
                total,
                total_shifted,
                square,
                square_shifted,
                square_twice,
                exponent_scale,
                floor,
                SQUARED,
            )

    # The threads' sums, counted from the largest logit of them all; in float64, as they are added
    # up.
    largest = tl.max(maximum, 0)
    centre = tl.where(largest == -float("inf"), 0.0, largest)
    change = tl.maximum(maximum - centre, floor)
    scale = tl.exp2(change * exponent_scale).to(tl.float64)
    change = change.to(tl.float64)
    wide_total = scale * total.to(tl.float64)
    wide_shifted = scale * total_shifted.to(tl.float64) + change * wide_total
    wide_square = scale * scale * square.to(tl.float64)
    wide_square_shifted = scale * scale * square_shifted.to(tl.float64)

    column = tl.load(token_ids_ptr + row) - start
    offset_chosen = column + lead
    in_split = (
        (column >= 0)
        & (column < columns)
        & (offset_chosen >= first * BLOCK)
        & (offset_chosen < last * BLOCK)
    )
    chosen = tl.load(logits_ptr + offset_row + column, mask=in_split, other=-float("inf"))
    chosen_shifted = (tl.cast(chosen, tl.float64) - tl.cast(centre, tl.float64)) * inverse
    out_ptr = moments_ptr + tl.cast(split, tl.int64) * (MOMENTS + SQUARED) * rows + row
    tl.store(out_ptr, tl.cast(largest, tl.float64) * inverse)
    tl.store(out_ptr + rows, tl.sum(wide_total, 0))
    tl.store(out_ptr + 2 * rows, tl.sum(wide_shifted, 0) * inverse)
    tl.store(out_ptr + 3 * rows, tl.sum(wide_square, 0))
    tl.store(out_ptr + 4 * rows, tl.sum(wide_square_shifted + change * wide_square, 0) * inverse)
    tl.store(out_ptr + 5 * rows, chosen_shifted)
    if SQUARED:
        wide_twice = scale * scale * square_twice.to(tl.float64)
        wide_twice += change * (2 * wide_square_shifted + change * wide_square)
        tl.store(out_ptr + 6 * rows, tl.sum(wide_twice, 0) * inverse * inverse)


@triton.jit
def merged_splits(
    moments_ptr, rows, splits, offset_rows, SQUARED: tl.constexpr, SPLITS: tl.constexpr
):
    """`moments.merge` over the splits of the rows at `offset_rows`; SPLITS is a power of two, at
    least `splits`."""
    offset_splits = tl.arange(0, SPLITS)
    in_moments = (offset_splits[:, None] < splits) & (offset_rows[None, :] < rows)
    part_ptr = (
        moments_ptr
        + offset_splits[:, None].to(tl.int64) * (MOMENTS + SQUARED) * rows
        + offset_rows[None, :]
    )
    part_maximum = tl.load(part_ptr, mask=in_moments, other=-float("inf"))
    part_total = tl.load(part_ptr + rows, mask=in_moments, other=0.0)
    part_total_shifted = tl.load(part_ptr + 2 * rows, mask=in_moments, other=0.0)
    part_square = tl.load(part_ptr + 3 * rows, mask=in_moments, other=0.0)
    part_square_shifted = tl.load(part_ptr + 4 * rows, mask=in_moments, other=0.0)
    part_chosen = tl.load(part_ptr + 5 * rows, mask=in_moments, other=-float("inf"))

    maximum = tl.max(part_maximum, 0)
    centre = tl.where(maximum == -float("inf"), 0.0, maximum)
    change = part_maximum - centre[None, :]
    bounded = tl.maximum(change, LOWEST_SHIFT)
    scale = tl.where(change == -float("inf"), 0.0, tl.exp(bounded))
    square_scale = scale * scale
    total = tl.sum(scale * part_total, 0)
    total_shifted = tl.sum(scale * (part_total_shifted + bounded * part_total), 0)
    square = tl.sum(square_scale * part_square, 0)
    square_shifted = tl.sum(square_scale * (part_square_shifted + bounded * part_square), 0)
    chosen = tl.max(part_chosen + change, 0)
    square_twice = total
    if SQUARED:
        part_square_twice = tl.load(part_ptr + 6 * rows, mask=in_moments, other=0.0)
        part_square_twice += bounded * (2 * part_square_shifted + bounded * part_square)
        square_twice = tl.sum(square_scale * part_square_twice, 0)
    return maximum, total, total_shifted, square, square_shifted, chosen, square_twice


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_kernel(
    moments_ptr,
    merged_ptr,
    rows,
    splits,
    SQUARED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """float64 moments [splits, 6, rows] become [6, rows], 7 where SQUARED; one program for every
    ROWS rows."""
    offset_rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = offset_rows < rows
    maximum, total, total_shifted, square, square_shifted, chosen, square_twice = merged_splits(
        moments_ptr, rows, splits, offset_rows, SQUARED, SPLITS
    )
    out_ptr = merged_ptr + offset_rows
    tl.store(out_ptr, maximum, mask=in_rows)
    tl.store(out_ptr + rows, total, mask=in_rows)
    tl.store(out_ptr + 2 * rows, total_shifted, mask=in_rows)
    tl.store(out_ptr + 3 * rows, square, mask=in_rows)
    tl.store(out_ptr + 4 * rows, square_shifted, mask=in_rows)
    tl.store(out_ptr + 5 * rows, chosen, mask=in_rows)
    if SQUARED:
        tl.store(out_ptr + 6 * rows, square_twice, mask=in_rows)


@triton.jit(do_not_specialize=["rows", "splits"])
def finish_kernel(
    moments_ptr,
    scores_ptr,
    rows,
    splits,
    SQUARED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """`moments.finish` after the merge: float64 moments [splits, 6, rows] become scores [5, rows],
    as in `RowScores`.

    Where SQUARED: [splits, 7, rows] become [6, rows].
    """
    offset_rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = offset_rows < rows
    maximum, total, total_shifted, square, square_shifted, chosen, square_twice = merged_splits(
        moments_ptr, rows, splits, offset_rows, SQUARED, SPLITS
    )
    # NaN in every score of a row that is masked everywhere or holds +inf; a NaN logit made the
    # total NaN already.
    total = tl.where((maximum > -float("inf")) & (maximum < float("inf")), total, float("nan"))
    probability_unit = 1.0 / total
    mean_shifted = total_shifted * probability_unit
    log_total = tl.log(total)
    logprob = chosen - log_total + (total - total)
    impossible = (chosen == -float("inf")) & (total > 0)
    discriminator = tl.where(impossible, 0.0, tl.exp(logprob) * (chosen - mean_shifted))
    out_ptr = scores_ptr + offset_rows
    tl.store(out_ptr, maximum + log_total, mask=in_rows)
    tl.store(out_ptr + rows, logprob, mask=in_rows)
    tl.store(out_ptr + 2 * rows, log_total - mean_shifted, mask=in_rows)
    tl.store(out_ptr + 3 * rows, discriminator, mask=in_rows)
    expected = (square_shifted - mean_shifted * square) * probability_unit * probability_unit
    tl.store(out_ptr + 4 * rows, expected, mask=in_rows)
    if SQUARED:
        sums = square_twice - mean_shifted * (2 * square_shifted - mean_shifted * square)
        squared_scores = sums * probability_unit * probability_unit
        # Rounding can take a sum of 0 below it; a NaN fails the comparison, and stays.
        tl.store(
            out_ptr + 5 * rows, tl.where(squared_scores < 0, 0.0, squared_scores), mask=in_rows
        )


@triton.jit(do_not_specialize=["inner_rows", "start"])
def gradient_kernel(
    logits_ptr,
    token_ids_ptr,
    log_normalizer_ptr,
    logprob_gradient_ptr,
    entropy_gradient_ptr,
    entropies_ptr,
    gradient_ptr,
    columns,
    inner_rows,
    offset_storage,
    outer_stride,
    inner_stride,
    start,
    temperatures_ptr,
    temperature,
    inverse_temperature,
    inverse_temperature_rest,
    PER_ROW: tl.constexpr,
    HAS_LOGPROB: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """BLOCKS blocks of BLOCK columns of one row of (g (1[i = k] - p_i) - h p_i (H + log p_i)) / T;
    the grid is (rows, programs of a row).

    Args:
        logits_ptr, inner_rows, offset_storage, outer_stride, inner_stride, token_ids_ptr, start,
            temperatures_ptr, inverse_temperature, inverse_temperature_rest: as for
                `moments_kernel`.
        temperature: T.
        log_normalizer_ptr: L, float64 [rows].
        logprob_gradient_ptr, entropy_gradient_ptr: g and h, [rows]; read where HAS_LOGPROB and
            HAS_ENTROPY.
        entropies_ptr: H in nats, [rows]; read where HAS_ENTROPY.
        gradient_ptr: [rows, columns], of the logits' type.
    """
    row = tl.program_id(0)
    offset_row = row_offset(row, inner_rows, offset_storage, outer_stride, inner_stride)
    out_ptr = gradient_ptr + row.to(tl.int64) * columns

    # log p = (z - r) / T - (L - r / T) with r near L T: by the row's largest logits z - r is exact
    # in float32, whatever they have in common, and the rest is one float64 number a row.
    inverse = float64_of(inverse_temperature, inverse_temperature_rest)
    if PER_ROW:
        inverse = 1.0 / tl.load(temperatures_ptr + row)
        temperature = tl.load(temperatures_ptr + row)
        inverse_temperature = inverse.to(tl.float32)
    temperature = tl.cast(temperature, tl.float64)
    log_normalizer = tl.load(log_normalizer_ptr + row)
    # Rounded by a cast: a product in float32 might be fused with what is subtracted from it, and
    # not rounded at all.
    centre = (log_normalizer * temperature).to(tl.float32)
    remainder = (log_normalizer - centre.to(tl.float64) * inverse).to(tl.float32)

    column = tl.load(token_ids_ptr + row) - start
    factor = tl.full([], 0.0, tl.float32)
    entropy_factor = tl.full([], 0.0, tl.float32)
    entropy = tl.full([], 0.0, tl.float32)
    if HAS_LOGPROB:
        factor = (tl.load(logprob_gradient_ptr + row).to(tl.float64) * inverse).to(tl.float32)
    if HAS_ENTROPY:
        entropy_factor = (tl.load(entropy_gradient_ptr + row).to(tl.float64) * inverse).to(
            tl.float32
        )
        entropy = tl.load(entropies_ptr + row).to(tl.float32)
    # A row that is gated or padded gets no gradient, whatever its logits hold (0 * NaN), and is not
    # read.
    silent = (factor == 0.0) & (entropy_factor == 0.0)
    read_to = tl.where(silent, 0, columns)
    first = tl.program_id(1) * BLOCKS
    for block in range(first, tl.minimum(first + BLOCKS, tl.cdiv(columns, BLOCK))):
        offset = block * BLOCK + tl.arange(0, BLOCK)
        logits = tl.load(
            logits_ptr + offset_row + offset, mask=offset < read_to, other=-float("inf")
        ).to(tl.float32)
        logprobs = (logits - centre) * inverse_temperature - remainder
        probability = tl.exp2(logprobs * LOG2_E)
        slope = factor
        if HAS_ENTROPY:
            slope = factor + entropy_factor * (tl.maximum(logprobs, LOWEST_SHIFT) + entropy)
        gradient = tl.where(offset == column, factor, 0.0) - probability * slope
        gradient = tl.where(silent, 0.0, gradient)
        tl.store(
            out_ptr + offset, gradient.to(gradient_ptr.dtype.element_ty), mask=offset < columns
        )
