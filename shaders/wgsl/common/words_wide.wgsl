// Thirty-two bytes in one load, as four u64. Where a load costs by the piece and not by the byte, as on Mesa's software
// adapter, this is a fifth of a mat-mul's time. Needs shader-int64.

alias Word8 = vec4<u64>;

fn low_of(w: Word8) -> vec4u {
    return vec4u(u32(w.x), u32(w.x >> 32u), u32(w.y), u32(w.y >> 32u));
}

fn high_of(w: Word8) -> vec4u {
    return vec4u(u32(w.z), u32(w.z >> 32u), u32(w.w), u32(w.w >> 32u));
}
