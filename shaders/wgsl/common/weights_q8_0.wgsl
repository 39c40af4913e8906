// Q8_0: 16 words per row and 64 elements, byte j of word w is element 4w+j in two's complement; one scale word,
// f16 d of elements 0..31 | f16 d of 32..63 << 16. Weight = d * byte.

alias ScaleWord = u32;

struct Block {
    at: vec4u,  // index of the row's first 32 bytes, for the four row groups
    s: vec4u,
}

fn load_block(tile: u32, b: u32) -> Block {
    let step = shape.k_blocks * 8u;
    let i0 = (tile * 4u * shape.k_blocks + b) * 8u + lane;
    let i = vec4u(i0, i0 + step, i0 + 2u * step, i0 + 3u * step);
    return Block(i * vec4u(2u), vec4u(scales[i.x], scales[i.y], scales[i.z], scales[i.w]));
}

fn byte_rows(q: vec4u, shift: u32) -> vec4f {
    return vec4f(bitcast<vec4i>(q << vec4u(24u - shift)) >> vec4u(24u));
}

fn bytes8(low: vec4u, high: vec4u) -> Eight {
    return Eight(
        byte_rows(low, 0u), byte_rows(low, 8u), byte_rows(low, 16u), byte_rows(low, 24u),
        byte_rows(high, 0u), byte_rows(high, 8u), byte_rows(high, 16u), byte_rows(high, 24u),
    );
}

// Thirty-two bytes of a row hold four octets; the compiler shares the load between them.
fn unpack(k: Block, w: u32) -> Eight {
    let r0 = octet_words(k.at.x, w);
    let r1 = octet_words(k.at.y, w);
    let r2 = octet_words(k.at.z, w);
    let r3 = octet_words(k.at.w, w);
    return bytes8(vec4u(r0.x, r1.x, r2.x, r3.x), vec4u(r0.y, r1.y, r2.y, r3.y));
}

fn octet_words(at: u32, w: u32) -> vec2u {
    let bytes = weights[at + w / 4u];
    let half = select(low_of(bytes), high_of(bytes), w % 4u >= 2u);
    return select(half.xy, half.zw, w % 2u == 1u);
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
    let words = octet_words(2u * at, w);
    let low = vec4u(words.x);
    let high = vec4u(words.y);
    let shifts = vec4u(24u, 16u, 8u, 0u);
    return Octet(
        d * vec4f(bitcast<vec4i>(low << shifts) >> vec4u(24u)),
        d * vec4f(bitcast<vec4i>(high << shifts) >> vec4u(24u)),
    );
}
