// logprobs: of samples that ask: the log probability of their token, and the likeliest tokens with theirs, best first,
//           the lower id among equals; from the raw logits
// grid      (samples, 1, 1), one workgroup per sample
// binding   step         read        header, rows and samples of the step
// binding   vocab        uniform     vocab_size and quads per row
// binding   logit_table  read        what each sample asks for
// binding   logits       read        [rows][quads_per_row] f32 bits, four to an element
// binding   tokens       read        [samples] what was drawn, or forced
// binding   logprobs     read_write  [samples][21] (token, f32 bits): the sample's token, then the likeliest
// override  WG  threads per workgroup, a power of two from 8 to 256
override WG: u32 = 256u;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> vocab: Vocab;
@group(0) @binding(2) var<storage, read> logit_table: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<vec4u>;
@group(0) @binding(4) var<storage, read> tokens: array<u32>;
@group(0) @binding(5) var<storage, read_write> logprobs: array<vec2u>;

//!include "common/step.wgsl"
//!include "common/ranks.wgsl"
//!include "common/best.wgsl"
//!include "common/logit_table.wgsl"

// Quads c, c + CHUNKS, c + 2 * CHUNKS ... are chunk c, whose best token is kept at hand. Once it is reported, only its
// chunk is searched for the next.
const CHUNKS: u32 = 1024u;
const RECORD: u32 = 21u;
const NOBODY: vec2u = vec2u(OUTSIDE, OUTSIDE);

var<workgroup> chunk_bests: array<vec2u, CHUNKS>;  // (rank, id)
var<workgroup> shares: array<f32, WG>;

struct Softmax {
    top: f32,      // the largest logit
    log_sum: f32,  // ln of the sum of e^(logit - top)
}

fn fold(ranks: vec4u, ids: vec4u) -> vec2u {
    let left = better_of(vec2u(ranks.x, ids.x), vec2u(ranks.y, ids.y));
    return better_of(left, better_of(vec2u(ranks.z, ids.z), vec2u(ranks.w, ids.w)));
}

fn reduce_one(local: u32, own: vec2u) -> vec2u {
    return reduce_best(local, vec4u(own.x, vec3u(OUTSIDE)), vec4u(own.y, vec3u(OUTSIDE)));
}

fn find_chunk_bests(local: u32, row: u32) {
    for (var chunk = local; chunk < CHUNKS; chunk += WG) {
        var ranks = vec4u(OUTSIDE);
        var quads = vec4u(0u);
        for (var quad = chunk; quad < num_quads(); quad += CHUNKS) {
            let four = quad_ranks(row, quad);
            quads = select(quads, vec4u(quad), four < ranks);
            ranks = min(ranks, four);
        }
        chunk_bests[chunk] = fold(ranks, ids_of(quads));
    }
    workgroupBarrier();
}

fn best_chunk(local: u32) -> vec2u {
    var own = NOBODY;
    for (var chunk = local; chunk < CHUNKS; chunk += WG) {
        own = better_of(own, chunk_bests[chunk]);
    }
    return reduce_one(local, own);
}

// The best of a chunk that comes after `last`.
fn next_in_chunk(local: u32, row: u32, last: vec2u) -> vec2u {
    var own = NOBODY;
    for (var quad = (last.y / 4u) % CHUNKS + local * CHUNKS; quad < num_quads(); quad += WG * CHUNKS) {
        let ranks = quad_ranks(row, quad);
        let ids = ids_of(vec4u(quad));
        let after = (ranks > vec4u(last.x)) | ((ranks == vec4u(last.x)) & (ids > vec4u(last.y)));
        own = better_of(own, fold(select(vec4u(OUTSIDE), ranks, after), ids));
    }
    return reduce_one(local, own);
}

fn softmax_of(local: u32, row: u32, top: f32) -> Softmax {
    var four = vec4f(0.0);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(row, quad);
        four += select(vec4f(0.0), exp(values_of(ranks) - top), ranks < vec4u(NEG_INF));
    }
    shares[local] = (four.x + four.y) + (four.z + four.w);
    for (var reach = WG / 2u; reach > 0u; reach /= 2u) {
        workgroupBarrier();
        if (local < reach) {
            shares[local] += shares[local + reach];
        }
    }
    return Softmax(top, log(workgroupUniformLoad(&shares[0])));
}

// f32 bits; -inf for what is impossible.
fn logprob_of(softmax: Softmax, rank: u32) -> u32 {
    return select(bitcast<u32>(value_of(rank) - softmax.top - softmax.log_sum), NEG_INF, rank >= NEG_INF);
}

@compute @workgroup_size(WG, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let sample = group.x;
    let row = sample_word(sample, 2u).y;
    let asked = logit_table[8u * sample + 7u];
    if (asked == 0u) {
        return;
    }
    find_chunk_bests(local, row);
    var best = best_chunk(local);
    let softmax = softmax_of(local, row, value_of(best.x));
    if (local == 0u) {
        let token = tokens[sample];
        let rank = quad_ranks(row, token / 4u)[token % 4u];
        logprobs[RECORD * sample] = vec2u(token, logprob_of(softmax, rank));
    }
    for (var place = 1u; place < min(asked, vocab.vocab_size + 1u); place++) {
        let next = next_in_chunk(local, row, best);
        if (local == 0u) {
            logprobs[RECORD * sample + place] = vec2u(best.y, logprob_of(softmax, best.x));
            chunk_bests[(best.y / 4u) % CHUNKS] = next;
        }
        workgroupBarrier();
        best = best_chunk(local);
    }
}
