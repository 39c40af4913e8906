// BF16: 32 words per row and 64 elements, two to a word, the even element low; an f32 cut to its upper half. No scales.

//!include "common/floats.wgsl"

const UNITS: u32 = 4u;

fn bf16_pair(word: u32) -> vec2f {
    return bitcast<vec2f>(vec2u(word << 16u, word & 0xffff0000u));
}

fn octet_at(at: u32, w: u32) -> Octet {
    let bytes = weights[at + w / 2u];
    let q = select(low_of(bytes), high_of(bytes), w % 2u == 1u);
    return Octet(vec4f(bf16_pair(q.x), bf16_pair(q.y)), vec4f(bf16_pair(q.z), bf16_pair(q.w)));
}
