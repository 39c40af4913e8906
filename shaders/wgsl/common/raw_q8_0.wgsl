// Q8_0 in the file: 34 bytes for 32 elements, f16 d, 32 signed bytes.

fn repack_slice(row: u32, b: u32, at: u32) {
    var scale = 0u;
    for (var half = 0u; half < min(2u, window.row_elements / 32u - 2u * b); half++) {
        let start = row * window.row_bytes + (2u * b + half) * 34u;
        scale |= (raw_word(start) & 0xffffu) << (16u * half);
        for (var w = 0u; w < 8u; w++) {
            weights[16u * at + 8u * half + w] = raw_word(start + 2u + 4u * w);
        }
    }
    scales[at] = scale;
}
