// Which tokens a sample may be drawn from: temperature, then top-k, top-p and min-p, each over what the one before has
// left. Every filter keeps a prefix of the tokens in rank order, so the support is one limit; only top-p cuts between
// equal logits, and then keeps the lowest ids. Needs the bindings of common/ranks.wgsl and `step`.
// source    Holtzman et al. 2020, arXiv:1904.09751 (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p)

// Below this many nats under the largest logit, a probability is zero even in float64.
const VANISHED: f32 = 745.0;
const LOG2_E: f32 = 1.4426950408889634;

struct Params {
    row: u32,
    top_k: u32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
}

struct Support {
    best: u32,       // rank of the largest logit
    limit: u32,      // ranks up to here are in,
    last_tied: u32,  // at the limit itself only ids up to here
}

struct Softmax {
    top: f32,         // the largest logit
    per_nat: f32,     // log2(e) / temperature
    scale: f32,       // mass of the largest logit, in units that sum to about 2^31 over the tokens left
}

var<workgroup> shares: array<f32, WG>;

fn params_of(sample: u32) -> Params {
    let second = bitcast<vec4f>(sample_word(sample, 1u));
    return Params(sample_word(sample, 2u).y, sample_word(sample, 0u).w, second.x, second.y, second.z);
}

// In f32, relative to the largest logit's.
fn powers(softmax: Softmax, ranks: vec4u) -> vec4f {
    return exp2((values_of(ranks) - softmax.top) * softmax.per_nat);
}

fn masses(softmax: Softmax, ranks: vec4u) -> vec4u {
    return vec4u(powers(softmax, ranks) * softmax.scale + 0.5);
}

fn largest_logit(local: u32, row: u32) -> vec2u {
    var ranks = vec4u(OUTSIDE);
    var quads = vec4u(0u);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let four = quad_ranks(row, quad);
        quads = select(quads, vec4u(quad), four < ranks);
        ranks = min(ranks, four);
    }
    return reduce_best(local, ranks, ids_of(quads));
}

fn gather_share(first: u32, apart: u32) {
    var sum = 0.0;
    for (var i = 0u; i < GROUP; i++) {
        sum += shares[first + i * apart];
    }
    shares[first] = sum;
}

fn softmax_of(local: u32, p: Params, best: u32, limit: u32) -> Softmax {
    var softmax = Softmax(value_of(best), LOG2_E / max(p.temperature, 1e-30), 1.0);
    var four = vec4f(0.0);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(p.row, quad);
        four += select(vec4f(0.0), powers(softmax, ranks), ranks <= vec4u(limit));
    }
    shares[local] = (four.x + four.y) + (four.z + four.w);
    workgroupBarrier();
    if (local < GROUP) {
        gather_share(local * GROUP, 1u);
    }
    workgroupBarrier();
    if (local == 0u) {
        gather_share(0u, GROUP);
    }
    softmax.scale = 0x1p31f / workgroupUniformLoad(&shares[0]);
    return softmax;
}

fn fill_counts(local: u32, row: u32, window: Window) {
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(row, quad);
        add_weight(window, ranks.x, 1u);
        add_weight(window, ranks.y, 1u);
        add_weight(window, ranks.z, 1u);
        add_weight(window, ranks.w, 1u);
    }
}

fn fill_masses(local: u32, row: u32, window: Window, softmax: Softmax) {
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(row, quad);
        let four = masses(softmax, ranks);
        add_weight(window, ranks.x, four.x);
        add_weight(window, ranks.y, four.y);
        add_weight(window, ranks.z, four.z);
        add_weight(window, ranks.w, four.w);
    }
}

// Ids stand in for ranks, and only the tokens at the limit count.
fn fill_tied(local: u32, row: u32, window: Window, limit: u32) {
    for (var quad = local; quad < num_quads(); quad += WG) {
        let tied = vec4u(quad_ranks(row, quad) == vec4u(limit));
        let ids = ids_of(vec4u(quad));
        add_weight(window, ids.x, tied.x);
        add_weight(window, ids.y, tied.y);
        add_weight(window, ids.z, tied.z);
        add_weight(window, ids.w, tied.w);
    }
}

// Rank of the k-th largest logit.
fn top_k_limit(local: u32, p: Params) -> u32 {
    var window = whole_window(p.top_k);
    for (var level = 0u; level < LEVELS; level++) {
        clear_bins(local);
        fill_counts(local, p.row, window);
        window = narrow(local, window, 0.0);
        if (window.before + window.weight == window.goal) {
            break;
        }
    }
    return window.base + window.span;
}

// The id of the num-th token at the limit.
fn last_tied_id(local: u32, row: u32, limit: u32, num: u32) -> u32 {
    var window = whole_window(num);
    for (var level = 0u; level < LEVELS; level++) {
        clear_bins(local);
        fill_tied(local, row, window, limit);
        window = narrow(local, window, 0.0);
    }
    return window.base;
}

// (limit, last tied id) of the smallest prefix whose probabilities reach top_p.
fn top_p_limit(local: u32, p: Params, best: u32, limit: u32) -> vec2u {
    let softmax = softmax_of(local, p, best, limit);
    var window = whole_window(0u);
    for (var level = 0u; level < LEVELS; level++) {
        window.span = min(window.span, limit - window.base);
        clear_bins(local);
        fill_masses(local, p.row, window, softmax);
        window = narrow(local, window, p.top_p);
    }
    // At the last level a bin is one rank, so its weight is that of its tied tokens.
    let mass = max(masses(softmax, vec4u(window.base)).x, 1u);
    let tied = (window.weight + mass / 2u) / mass;
    let needed = (window.goal - window.before + mass - 1u) / mass;
    if (needed >= tied) {
        return vec2u(window.base, OUTSIDE);
    }
    return vec2u(window.base, last_tied_id(local, p.row, window.base, needed));
}

fn find_support(local: u32, p: Params) -> Support {
    let largest = largest_logit(local, p.row);
    if (!(p.temperature > 0.0) || largest.x >= NEG_INF) {
        return Support(largest.x, largest.x, largest.y);
    }
    var found = vec2u(NEG_INF, OUTSIDE);
    if (p.top_k > 0u && p.top_k < vocab.vocab_size) {
        found.x = top_k_limit(local, p);
    }
    if (p.top_p < 1.0) {
        found = top_p_limit(local, p, largest.x, found.x);
    }
    // A token has min_p of the largest probability where its logit is at most -ln(min_p) * temperature lower.
    let depth = select(VANISHED, clamp(-log(p.min_p), 0.0, VANISHED), p.min_p > 0.0);
    let floor_rank = rank_of(value_of(largest.x) - depth * p.temperature);
    if (floor_rank < found.x) {
        found = vec2u(floor_rank, OUTSIDE);
    }
    return Support(largest.x, found.x, found.y);
}

fn in_support(support: Support, ranks: vec4u, ids: vec4u) -> vec4<bool> {
    let tied = (ranks == vec4u(support.limit)) & (ids <= vec4u(support.last_tied));
    return (ranks < vec4u(support.limit)) | tied;
}
