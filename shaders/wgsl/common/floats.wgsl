// What the block types without scales share: UNITS of 32 bytes per row and 64 elements, read by octet_at(at, w).

alias ScaleWord = u32;

struct Block {
    at: vec4u,  // index of the row's first 32 bytes, for the four row groups
}

fn load_block(tile: u32, b: u32) -> Block {
    let step = shape.k_blocks * 8u;
    let i0 = (tile * 4u * shape.k_blocks + b) * 8u + lane;
    return Block(vec4u(i0, i0 + step, i0 + 2u * step, i0 + 3u * step) * vec4u(UNITS));
}

fn unpack(k: Block, w: u32) -> Eight {
    let r0 = octet_at(k.at.x, w);
    let r1 = octet_at(k.at.y, w);
    let r2 = octet_at(k.at.z, w);
    let r3 = octet_at(k.at.w, w);
    return Eight(
        vec4f(r0.low.x, r1.low.x, r2.low.x, r3.low.x), vec4f(r0.low.y, r1.low.y, r2.low.y, r3.low.y),
        vec4f(r0.low.z, r1.low.z, r2.low.z, r3.low.z), vec4f(r0.low.w, r1.low.w, r2.low.w, r3.low.w),
        vec4f(r0.high.x, r1.high.x, r2.high.x, r3.high.x), vec4f(r0.high.y, r1.high.y, r2.high.y, r3.high.y),
        vec4f(r0.high.z, r1.high.z, r2.high.z, r3.high.z), vec4f(r0.high.w, r1.high.w, r2.high.w, r3.high.w),
    );
}

fn fold(sum: vec4f, part: vec4f, k: Block, half: u32, x_sum: f32) -> vec4f {
    return sum + part;
}

fn octet(row: u32, b: u32, w: u32) -> Octet {
    return octet_at(((row / 8u * shape.k_blocks + b) * 8u + row % 8u) * UNITS, w);
}
