// logit_process: a copy of each sample's logits for the draw: bias, then repetition, frequency and presence penalty,
//                then the bitmask. The raw logits stay for logprobs; what a sample leaves alone is copied bit by bit
// grid      (samples, 1, 1), one workgroup per sample
// binding   step         read        header, rows and samples of the step
// binding   vocab        uniform     vocab_size and quads per row
// binding   logit_table  read        what each sample asks for
// binding   counts       read        [slots][quads_per_row], occurrences in the answer; bit 31: in the prompt
// binding   logits       read        [rows][quads_per_row] f32 bits, four to an element
// binding   processed    read_write  [rows][4 * quads_per_row] f32 bits
// override  WG  threads per workgroup, a power of two from 8 to 256
// source    Keskar et al. 2019, arXiv:1909.05858 (repetition penalty)
override WG: u32 = 256u;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> vocab: Vocab;
@group(0) @binding(2) var<storage, read> logit_table: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<vec4u>;
@group(0) @binding(4) var<storage, read> logits: array<vec4u>;
@group(0) @binding(5) var<storage, read_write> processed: array<u32>;

//!include "common/step.wgsl"
//!include "common/ranks.wgsl"
//!include "common/logit_table.wgsl"

fn penalized(wish: Wish, bits: vec4u, seen: vec4u) -> vec4u {
    let raw = bitcast<vec4f>(bits);
    let repeated = select(raw / wish.repetition, raw * wish.repetition, raw < vec4f(0.0));
    let answered = seen & vec4u(0x7fffffffu);
    let fewer = wish.frequency * vec4f(answered) + wish.presence * vec4f(min(answered, vec4u(1u)));
    return select(bits, bitcast<vec4u>(repeated - fewer), seen > vec4u(0u));
}

fn masked(wish: Wish, bits: vec4u, quad: u32) -> vec4u {
    let four = logit_table[wish.first_mask + quad / 8u] >> (4u * (quad % 8u));
    return select(bits, vec4u(NEG_INF), (vec4u(four) & vec4u(1u, 2u, 4u, 8u)) == vec4u(0u));
}

// Everything but the bias, of tokens 4 * quad to 4 * quad + 3.
fn changed(wish: Wish, slot: u32, bits: vec4u, quad: u32) -> vec4u {
    var found = bits;
    if (wish.counts > 0u) {
        found = penalized(wish, found, counts[slot * vocab.quads_per_row + quad]);
    }
    if (wish.first_mask > 0u) {
        found = masked(wish, found, quad);
    }
    return found;
}

@compute @workgroup_size(WG, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let slot = sample_word(group.x, 0u).y;
    let first = sample_word(group.x, 2u).y * vocab.quads_per_row;
    let wish = wish_of(group.x);
    for (var quad = local; quad < num_quads(); quad += WG) {
        let bits = changed(wish, slot, logits[first + quad], quad);
        let at = 4u * (first + quad);
        processed[at] = bits.x;
        processed[at + 1u] = bits.y;
        processed[at + 2u] = bits.z;
        processed[at + 3u] = bits.w;
    }
    // The few biased tokens are done over, as another thread may have written them.
    storageBarrier();
    for (var i = local; i < wish.num_biases; i += WG) {
        let id = logit_table[wish.first_bias + 2u * i];
        let bias = bitcast<f32>(logit_table[wish.first_bias + 2u * i + 1u]);
        let quad = id / 4u;
        let biased = bitcast<vec4u>(bitcast<vec4f>(logits[first + quad]) + bias);
        processed[4u * first + id] = changed(wish, slot, biased, quad)[id % 4u];
    }
}
