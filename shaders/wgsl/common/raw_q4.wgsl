// Nibbles of a GGUF block of 32 lie with element i low and element i + 16 high in byte i; ours lie in natural order.

// Four nibbles at the low ends of four bytes, drawn together.
fn squeeze(x: u32) -> u32 {
    let a = x & 0x0f0f0f0fu;
    let b = (a | (a >> 4u)) & 0x00ff00ffu;
    return (b | (b >> 8u)) & 0xffffu;
}

fn write_nibbles(at: u32, half: u32, bytes: u32) {
    let q0 = raw_word(bytes);
    let q1 = raw_word(bytes + 4u);
    let q2 = raw_word(bytes + 8u);
    let q3 = raw_word(bytes + 12u);
    let to = 8u * at + 4u * half;
    weights[to] = squeeze(q0) | (squeeze(q1) << 16u);
    weights[to + 1u] = squeeze(q2) | (squeeze(q3) << 16u);
    weights[to + 2u] = squeeze(q0 >> 4u) | (squeeze(q1 >> 4u) << 16u);
    weights[to + 3u] = squeeze(q2 >> 4u) | (squeeze(q3 >> 4u) << 16u);
}
