// Thirty-two bytes as two loads of four words: what every device has.

struct Word8 {
    low: vec4u,
    high: vec4u,
}

fn low_of(w: Word8) -> vec4u {
    return w.low;
}

fn high_of(w: Word8) -> vec4u {
    return w.high;
}
