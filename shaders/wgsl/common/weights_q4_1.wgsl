// Q4_1: 8 words per row and 64 elements, nibble j of word w is element 8w+j; two scale words, f16 d | f16 m << 16,
// one for each 32 elements. Weight = d * nibble + m.

//!include "common/nibbles.wgsl"

alias ScaleWord = vec2u;

struct Block {
    a0: vec4u, a1: vec4u, a2: vec4u, a3: vec4u,  // elements 0..31 of the four row groups
    b0: vec4u, b1: vec4u, b2: vec4u, b3: vec4u,  // elements 32..63
    s0: vec2u, s1: vec2u, s2: vec2u, s3: vec2u,
}

fn load_block(tile: u32, b: u32) -> Block {
    let step = shape.k_blocks * 8u;
    let i0 = (tile * 4u * shape.k_blocks + b) * 8u + lane;
    let i1 = i0 + step;
    let i2 = i1 + step;
    let i3 = i2 + step;
    let q0 = weights[i0];
    let q1 = weights[i1];
    let q2 = weights[i2];
    let q3 = weights[i3];
    return Block(
        low_of(q0), low_of(q1), low_of(q2), low_of(q3),
        high_of(q0), high_of(q1), high_of(q2), high_of(q3),
        scales[i0], scales[i1], scales[i2], scales[i3],
    );
}

fn unpack(k: Block, w: u32) -> Eight {
    if (w < 4u) {
        return nibbles(vec4u(k.a0[w & 3u], k.a1[w & 3u], k.a2[w & 3u], k.a3[w & 3u]));
    }
    return nibbles(vec4u(k.b0[w & 3u], k.b1[w & 3u], k.b2[w & 3u], k.b3[w & 3u]));
}

fn fold(sum: vec4f, part: vec4f, k: Block, half: u32, x_sum: f32) -> vec4f {
    let dm0 = unpack2x16float(k.s0[half]);
    let dm1 = unpack2x16float(k.s1[half]);
    let dm2 = unpack2x16float(k.s2[half]);
    let dm3 = unpack2x16float(k.s3[half]);
    let scaled = fma(vec4f(dm0.x, dm1.x, dm2.x, dm3.x), part, sum);
    return fma(vec4f(dm0.y, dm1.y, dm2.y, dm3.y), vec4f(x_sum), scaled);
}

fn octet(row: u32, b: u32, w: u32) -> Octet {
    let at = (row / 8u * shape.k_blocks + b) * 8u + row % 8u;
    let dm = unpack2x16float(scales[at][w / 4u]);
    let words = weights[at];
    let q = select(low_of(words), high_of(words), w >= 4u)[w % 4u];
    return Octet(
        fma(vec4f(dm.x), vec4f((vec4u(q) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)), vec4f(dm.y)),
        fma(vec4f(dm.x), vec4f((vec4u(q) >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u)), vec4f(dm.y)),
    );
}
