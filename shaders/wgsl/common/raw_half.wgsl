// F16 and BF16 in the file: two bytes an element, in order.

fn repack_slice(row: u32, b: u32, at: u32) {
    for (var w = 0u; w < min(32u, (window.row_elements - 64u * b + 1u) / 2u); w++) {
        var word = raw_word(row * window.row_bytes + 128u * b + 4u * w);
        if (64u * b + 2u * w + 1u >= window.row_elements) {
            word &= 0xffffu;  // an odd row ends in half a word
        }
        weights[32u * at + w] = word;
    }
}
