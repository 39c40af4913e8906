// F32 in the file: four bytes an element, in order.

fn repack_slice(row: u32, b: u32, at: u32) {
    for (var w = 0u; w < min(64u, window.row_elements - 64u * b); w++) {
        weights[64u * at + w] = raw_word(row * window.row_bytes + 256u * b + 4u * w);
    }
}
