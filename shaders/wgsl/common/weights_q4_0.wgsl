// Q4_0: 8 words per row and 64 elements, nibble j of word w is element 8w+j; one scale word, f16 d of elements 0..31 |
// f16 d of 32..63 << 16. Weight = d * (nibble - 8).

//!include "common/nibbles.wgsl"

alias ScaleWord = u32;

struct Block {
    a0: vec4u, a1: vec4u, a2: vec4u, a3: vec4u,  // elements 0..31 of the four row groups
    b0: vec4u, b1: vec4u, b2: vec4u, b3: vec4u,  // elements 32..63
    s: vec4u,  // scale words of the four row groups
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
        vec4u(scales[i0], scales[i1], scales[i2], scales[i3]),
    );
}

fn centred(e: Eight) -> Eight {
    let c = vec4f(8.0);
    return Eight(e.k0 - c, e.k1 - c, e.k2 - c, e.k3 - c, e.k4 - c, e.k5 - c, e.k6 - c, e.k7 - c);
}

fn unpack(k: Block, w: u32) -> Eight {
    if (w < 4u) {
        return centred(nibbles(vec4u(k.a0[w & 3u], k.a1[w & 3u], k.a2[w & 3u], k.a3[w & 3u])));
    }
    return centred(nibbles(vec4u(k.b0[w & 3u], k.b1[w & 3u], k.b2[w & 3u], k.b3[w & 3u])));
}

fn fold(sum: vec4f, part: vec4f, k: Block, half: u32, x_sum: f32) -> vec4f {
    let d0 = unpack2x16float(k.s.x);
    let d1 = unpack2x16float(k.s.y);
    let d2 = unpack2x16float(k.s.z);
    let d3 = unpack2x16float(k.s.w);
    return fma(vec4f(d0[half], d1[half], d2[half], d3[half]), part, sum);
}

fn octet(row: u32, b: u32, w: u32) -> Octet {
    let at = (row / 8u * shape.k_blocks + b) * 8u + row % 8u;
    let d = vec4f(unpack2x16float(scales[at])[w / 4u]);
    let words = weights[at];
    let q = select(low_of(words), high_of(words), w >= 4u)[w % 4u];
    return Octet(
        d * (vec4f((vec4u(q) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)) - vec4f(8.0)),
        d * (vec4f((vec4u(q) >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u)) - vec4f(8.0)),
    );
}
