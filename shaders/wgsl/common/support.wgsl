// Which tokens a sample may be drawn from: temperature, then top-k, top-p and min-p, each over what the one before has
// left. Every filter keeps a prefix of the tokens in rank order, so the support is one limit; only top-p cuts between
// equal logits, and then keeps the lowest ids. Needs the bindings of common/ranks.wgsl and `step`.
// source    Holtzman et al. 2020, arXiv:1904.09751 (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p)

// Below this many nats under the largest logit, a probability is zero even in float64.
const VANISHED: f32 = 745.0;
const LOG2_E: f32 = 1.4426950408889634;

// The searches, in order: the k-th rank by count, the end of the nucleus by mass, the last id kept at that rank.
const TOP_K: u32 = 0u;
const TOP_P: u32 = 1u;
const TIED: u32 = 2u;

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
    top: f32,      // the largest logit
    per_nat: f32,  // log2(e) / temperature
    scale: f32,    // mass of the largest logit, in units that sum to about 2^31 over the tokens left
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

// Probabilities as integers: rounding errors stay below 1e-6 of the whole even over large vocabularies.
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

// Of the tokens up to the limit.
fn softmax_of(local: u32, p: Params, support: Support) -> Softmax {
    var softmax = Softmax(value_of(support.best), LOG2_E / max(p.temperature, 1e-30), 1.0);
    var four = vec4f(0.0);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(p.row, quad);
        four += select(vec4f(0.0), powers(softmax, ranks), ranks <= vec4u(support.limit));
    }
    shares[local] = (four.x + four.y) + (four.z + four.w);
    for (var reach = WG / 2u; reach > 0u; reach /= 2u) {
        workgroupBarrier();
        if (local < reach) {
            shares[local] += shares[local + reach];
        }
    }
    softmax.scale = 0x1p31f / workgroupUniformLoad(&shares[0]);
    return softmax;
}

fn fill_bins(local: u32, row: u32, search: u32, window: Window, limit: u32, softmax: Softmax) {
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(row, quad);
        var keys = ranks;
        var weights = vec4u(1u);
        if (search == TOP_P) {
            weights = masses(softmax, ranks);
        } else if (search == TIED) {
            keys = ids_of(vec4u(quad));
            weights = vec4u(ranks == vec4u(limit));
        }
        add_weight(window, keys.x, weights.x);
        add_weight(window, keys.y, weights.y);
        add_weight(window, keys.z, weights.z);
        add_weight(window, keys.w, weights.w);
    }
}

fn run_search(local: u32, p: Params, search: u32, support: Support, softmax: Softmax, goal: u32) -> Window {
    var window = whole_window(goal);
    for (var level = 0u; level < LEVELS; level++) {
        if (search == TOP_P) {
            window.span = min(window.span, support.limit - window.base);
        }
        clear_bins(local);
        fill_bins(local, p.row, search, window, support.limit, softmax);
        window = narrow(local, window, p.top_p);
        if (search == TOP_K && window.before + window.weight == goal) {
            break;
        }
    }
    return window;
}

// What a search has to reach; 0 where it has nothing to do.
fn goal_of(p: Params, search: u32, num_tied: u32) -> u32 {
    switch search {
        case TOP_K: { return select(0u, p.top_k, p.top_k < vocab.vocab_size); }
        case TOP_P: { return select(0u, SHARE, p.top_p < 1.0); }
        default: { return num_tied; }
    }
}

// How many of the tokens that share the last rank top-p keeps; 0 for all. A bin of the last level is one rank.
fn tied_to_keep(window: Window, softmax: Softmax) -> u32 {
    let mass = max(masses(softmax, vec4u(window.base)).x, 1u);
    let tied = (window.weight + mass / 2u) / mass;
    let needed = (window.goal - window.before + mass - 1u) / mass;
    return select(0u, needed, needed < tied);
}

// A token has min_p of the largest probability where its logit is at most -ln(min_p) * temperature below the largest.
fn min_p_limit(p: Params, best: u32) -> u32 {
    let depth = select(VANISHED, clamp(-log(p.min_p), 0.0, VANISHED), p.min_p > 0.0);
    return min(rank_of(value_of(best) - depth * p.temperature), NEG_INF - 1u);
}

// The searches share one loop because a software adapter runs, masked, also the code that a workgroup skips.
fn find_support(local: u32, p: Params) -> Support {
    let largest = largest_logit(local, p.row);
    if (!(p.temperature > 0.0) || largest.x >= NEG_INF) {
        return Support(largest.x, largest.x, largest.y);
    }
    var support = Support(largest.x, NEG_INF, OUTSIDE);
    var softmax = Softmax(0.0, 0.0, 0.0);
    var num_tied = 0u;
    for (var search = TOP_K; search <= TIED; search++) {
        let goal = goal_of(p, search, num_tied);
        if (goal == 0u) {
            continue;
        }
        if (search == TOP_P) {
            softmax = softmax_of(local, p, support);
        }
        let window = run_search(local, p, search, support, softmax, goal);
        if (search == TIED) {
            support.last_tied = window.base;
        } else {
            support.limit = window.base + window.span;
        }
        if (search == TOP_P) {
            num_tied = tied_to_keep(window, softmax);
        }
    }
    let limit = min_p_limit(p, support.best);
    if (limit < support.limit) {
        support.limit = limit;
        support.last_tied = OUTSIDE;
    }
    return support;
}

fn in_support(support: Support, ranks: vec4u, ids: vec4u) -> vec4<bool> {
    let tied = (ranks == vec4u(support.limit)) & (ids <= vec4u(support.last_tied));
    return (ranks < vec4u(support.limit)) | tied;
}
