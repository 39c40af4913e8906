// Q4_1 in the file: 20 bytes for 32 elements, f16 d, f16 m, 16 bytes of nibbles.

//!include "common/raw_q4.wgsl"

fn repack_slice(row: u32, b: u32, at: u32) {
    for (var half = 0u; half < min(2u, window.row_elements / 32u - 2u * b); half++) {
        let start = row * window.row_bytes + (2u * b + half) * 20u;
        scales[2u * at + half] = raw_word(start);
        write_nibbles(at, half, start + 4u);
    }
}
