// sample_support: which tokens `sample` would draw from, as a bitmask, 1 = may be drawn
// grid      (samples, 1, 1), one workgroup per sample
// binding   step     read        header, rows and samples of the step
// binding   vocab    uniform     vocab_size and quads per row
// binding   logits   read        [rows][quads_per_row] f32 bits, four to an element
// binding   bitmask  read_write  [samples][ceil(vocab_size / 32)], low bit = lowest id
// override  WG  threads per workgroup, a power of two from 8 to 256
override WG: u32 = 256u;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> vocab: Vocab;
@group(0) @binding(2) var<storage, read> logits: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> bitmask: array<u32>;

//!include "common/step.wgsl"
//!include "common/ranks.wgsl"
//!include "common/best.wgsl"
//!include "common/radix.wgsl"
//!include "common/support.wgsl"

fn support_word(p: Params, support: Support, word: u32) -> u32 {
    var bits = 0u;
    for (var i = 0u; i < 8u; i++) {
        let quad = word * 8u + i;
        if (quad < num_quads()) {
            let inside = vec4u(in_support(support, quad_ranks(p.row, quad), ids_of(vec4u(quad))));
            bits |= dot(inside, vec4u(1u, 2u, 4u, 8u)) << (4u * i);
        }
    }
    return bits;
}

@compute @workgroup_size(WG, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let p = params_of(group.x);
    let support = find_support(local, p);
    let num_words = (vocab.vocab_size + 31u) / 32u;
    for (var word = local; word < num_words; word += WG) {
        bitmask[group.x * num_words + word] = support_word(p, support, word);
    }
}
