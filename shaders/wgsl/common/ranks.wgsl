// Logits as ranks: 32-bit integers that order them exactly, the largest logit first, without relying on how a driver
// treats NaN, infinities and denormals in float comparisons. 0 and -0 share a rank, NaN shares that of -inf.
// Needs the bindings `logits` (array<vec4u>) and `vocab`.

struct Vocab {
    vocab_size: u32,
    quads_per_row: u32,
}

const LARGEST: u32 = 0x00800000u;  // rank of the largest finite value
const NEG_INF: u32 = 0xff800000u;
const OUTSIDE: u32 = 0xffffffffu;  // beyond the vocabulary

fn ranks_of(bits: vec4u) -> vec4u {
    let magnitude = bits & vec4u(0x7fffffffu);
    let negative = bits > vec4u(0x80000000u);
    let ranks = select(magnitude ^ vec4u(0x7fffffffu), bits, negative);
    return select(ranks, vec4u(NEG_INF), magnitude > vec4u(0x7f800000u));
}

// Back to floats; infinity becomes the largest finite value, so that differences stay numbers.
fn values_of(ranks: vec4u) -> vec4f {
    let finite = max(ranks, vec4u(LARGEST));
    return bitcast<vec4f>(select(finite ^ vec4u(0x7fffffffu), finite, finite >= vec4u(0x80000000u)));
}

fn value_of(rank: u32) -> f32 {
    return values_of(vec4u(rank)).x;
}

fn rank_of(value: f32) -> u32 {
    return ranks_of(vec4u(bitcast<u32>(value))).x;
}

fn ids_of(quad: vec4u) -> vec4u {
    return 4u * quad + vec4u(0u, 1u, 2u, 3u);
}

fn num_quads() -> u32 {
    return (vocab.vocab_size + 3u) / 4u;
}

// Ranks of tokens 4 * quad to 4 * quad + 3 in a row of the logits.
fn quad_ranks(row: u32, quad: u32) -> vec4u {
    let outside = ids_of(vec4u(quad)) >= vec4u(vocab.vocab_size);
    return select(ranks_of(logits[row * vocab.quads_per_row + quad]), vec4u(OUTSIDE), outside);
}
