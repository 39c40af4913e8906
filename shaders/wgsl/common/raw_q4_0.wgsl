// Q4_0 in the file: 18 bytes for 32 elements, f16 d, 16 bytes of nibbles.

//!include "common/raw_q4.wgsl"

fn repack_slice(row: u32, b: u32, at: u32) {
    var scale = 0u;
    for (var half = 0u; half < min(2u, window.row_elements / 32u - 2u * b); half++) {
        let start = row * window.row_bytes + (2u * b + half) * 18u;
        scale |= (raw_word(start) & 0xffffu) << (16u * half);
        write_nibbles(at, half, start + 2u);
    }
    scales[at] = scale;
}
