// sample: draws each sample's next token; temperature 0 takes the largest logit, the lowest id among equals. A forced
//         token only passes through to the host
// grid      (samples, 1, 1), one workgroup per sample
// binding   step         read        header, rows and samples of the step
// binding   vocab        uniform     vocab_size and quads per row
// binding   logits       read        [rows][quads_per_row] f32 bits, four to an element
// binding   last_tokens  read_write  [slots] the token that a sequence feeds to its next step
// binding   tokens       read_write  [samples] what was drawn, for the host
// override  WG  threads per workgroup, a power of two from 8 to 256
// source    Gumbel 1954, for the draw: the largest of logit / temperature + noise is distributed as softmax
override WG: u32 = 256u;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> vocab: Vocab;
@group(0) @binding(2) var<storage, read> logits: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> last_tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> tokens: array<u32>;

//!include "common/step.wgsl"
//!include "common/ranks.wgsl"
//!include "common/best.wgsl"
//!include "common/radix.wgsl"
//!include "common/support.wgsl"
//!include "common/random.wgsl"

// Each thread keeps its best four; noise is spent only where a token is in the support.
fn draw(local: u32, p: Params, support: Support, stream: vec4u) -> u32 {
    let top = value_of(support.best);
    let per_temperature = 1.0 / max(p.temperature, 1e-30);
    var best = vec4f(bitcast<f32>(0xff7fffffu));
    var quads = vec4u(0u);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let ranks = quad_ranks(p.row, quad);
        let inside = in_support(support, ranks, ids_of(vec4u(quad)));
        if (any(inside)) {
            let scores = (values_of(ranks) - top) * per_temperature + gumbel_of(four_words(stream, quad));
            let better = inside & (scores > best);
            best = select(best, scores, better);
            quads = select(quads, vec4u(quad), better);
        }
    }
    return reduce_best(local, ranks_of(bitcast<vec4u>(best)), ids_of(quads)).y;
}

@compute @workgroup_size(WG, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let sample = group.x;
    let p = params_of(sample);
    let support = find_support(local, p);
    var token = support.last_tied;
    if (p.temperature > 0.0 && support.best < NEG_INF) {
        let stream = stream_of(
            sample_word(sample, 1u).w,
            sample_word(sample, 2u).x,
            sample_word(sample, 0u).z,
        );
        token = draw(local, p, support, stream);
    }
    let forced = sample_word(sample, 2u).z;
    if (local == 0u && forced > 0u) {
        tokens[sample] = forced - 1u;
    } else if (local == 0u) {
        tokens[sample] = token;
        last_tokens[sample_word(sample, 0u).y] = token;
    }
}
